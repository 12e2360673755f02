//! The timeline of an answer.

use pyo3::prelude::*;

/// What each device did while an answer was generated.
#[pyclass(frozen, module = "forerun._forerun")]
pub(crate) struct Trace(forerun::trace::Trace);

impl Trace {
    pub(crate) fn new(trace: forerun::trace::Trace) -> Self {
        Self(trace)
    }
}

#[pymethods]
impl Trace {
    /// Draws the timeline as an SVG file of its own, with one lane per device.
    fn svg(&self) -> String {
        forerun_draw::timeline(&self.0.with_devices_as_lanes(), "Timeline")
    }

    /// Draws the timeline as text of at most a hundred columns, with one lane per device.
    fn ascii(&self) -> String {
        let trace = self.0.with_devices_as_lanes();
        trace.to_ascii(trace.occupancy().wall_ns.div_ceil(100))
    }

    /// Returns the timeline as JSON for Perfetto.
    fn perfetto(&self) -> String {
        self.0.to_perfetto().to_string()
    }
}
