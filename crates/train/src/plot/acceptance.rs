//! How a drafter gets on, as a picture: for each position of its drafts, what is accepted of sampled
//! tokens above, of the most probable ones below.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::{GRID, HEIGHT, PlotError, Point, WIDTH, is_svg, step_label, write};
use crate::drafter::PositionAcceptance;
use crate::metrics::{Record, read_metrics};

/// Colours of positions, the first one first (ColorBrewer's Dark2, and two greys).
const COLORS: [RGBColor; 9] = [
    RGBColor(27, 158, 119),
    RGBColor(217, 95, 2),
    RGBColor(117, 112, 179),
    RGBColor(231, 41, 138),
    RGBColor(102, 166, 30),
    RGBColor(230, 171, 2),
    RGBColor(166, 118, 29),
    RGBColor(102, 102, 102),
    RGBColor(170, 170, 170),
];

/// Draws the acceptance by position that the log of a drafter's run tells, by step, as an SVG file; none
/// where the log tells of none.
///
/// # Errors
/// If the log cannot be read, or the picture cannot be written.
pub fn plot_acceptance(log: &Path, picture: &Path, title: &str) -> Result<(), PlotError> {
    is_svg(picture)?;
    let records = read_metrics(log)?;
    let lines = |rate: fn(&PositionAcceptance) -> f64| lines(&records, rate);
    let (overlap, agreement) = (lines(|rates| rates.overlap), lines(|rates| rates.agreement));
    if overlap.is_empty() {
        return Ok(());
    }
    let steps = overlap.iter().flatten().map(|point| point.0).fold(1.0, f64::max);
    write(picture, |svg| {
        let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
        // White, whatever the viewer's own background is.
        root.fill(&WHITE)?;
        let (upper, lower) =
            root.titled(title, ("sans-serif", 22))?.split_vertically(HEIGHT / 2 - 16);
        draw(&upper, &overlap, steps, "sampled tokens (overlap)")?;
        draw(&lower, &agreement, steps, "most probable tokens")?;
        root.present()?;
        Ok(())
    })
}

/// A line for each position.
fn lines(records: &[Record], rate: fn(&PositionAcceptance) -> f64) -> Vec<Vec<Point>> {
    let mut lines: Vec<Vec<Point>> = Vec::new();
    for record in records {
        let Record::Acceptance(record) = record else { continue };
        lines.resize(lines.len().max(record.acceptance.len()), Vec::new());
        for (line, rates) in lines.iter_mut().zip(&record.acceptance) {
            // What is not finite has no place in a picture.
            let value = rate(rates);
            line.extend(value.is_finite().then_some((record.step as f64, value)));
        }
    }
    lines
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    lines: &[Vec<Point>],
    steps: f64,
    what: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(30)
        .x_label_area_size(40)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..steps, 0.0..1.0)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc("step").y_desc(format!("accepted: {what}")).x_label_formatter(&step_label);
    mesh.light_line_style(WHITE).bold_line_style(GRID).label_style(("sans-serif", 14)).draw()?;
    for (position, (line, color)) in lines.iter().zip(COLORS.iter().cycle()).enumerate() {
        let series = LineSeries::new(line.iter().copied(), color.stroke_width(2));
        let legend = move |(x, y): (i32, i32)| {
            PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
        };
        chart.draw_series(series)?.label(format!("position {}", position + 1)).legend(legend);
        chart.draw_series(line.iter().map(|&point| Circle::new(point, 3, color.filled())))?;
    }
    let mut labels = chart.configure_series_labels();
    labels.background_style(WHITE.mix(0.9)).border_style(RGBColor(200, 200, 200));
    labels.position(SeriesLabelPosition::UpperLeft).label_font(("sans-serif", 14)).draw()?;
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::metrics::{AcceptanceRecord, MetricsLog};

    fn record(step: u64) -> Record {
        let rates = |position: u32| PositionAcceptance {
            overlap: 0.8_f64.powi(position as i32 + 1) * step as f64 / 300.0,
            agreement: if step == 100 && position == 3 { f64::NAN } else { 0.5 },
        };
        Record::Acceptance(AcceptanceRecord {
            step,
            tokens: step * 2048,
            validation_loss: 4.0,
            acceptance: (0..9).map(rates).collect(),
            elapsed_s: step as f64,
        })
    }

    #[test]
    fn each_position_has_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let (log, picture) = (folder.path().join("log.jsonl"), folder.path().join("a.svg"));
        let mut metrics = MetricsLog::create(&log).unwrap();
        plot_acceptance(&log, &picture, "none yet").unwrap();
        assert!(!picture.exists());
        (1..4).for_each(|step| metrics.write(&record(step * 100)).unwrap());
        plot_acceptance(&log, &picture, "eagle & co").unwrap();
        let svg = std::fs::read_to_string(&picture).unwrap();
        for text in ["eagle &amp; co", "overlap", "most probable", "position 1", "position 9"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.trim_end().ends_with("</svg>") && !svg.contains("NaN"));
    }
}
