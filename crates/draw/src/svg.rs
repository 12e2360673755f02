//! SVG elements as text.

/// Escapes text for use in HTML and SVG content and attributes.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A `<text>` element; `anchor` is `start`, `middle` or `end`. Without a class if `class` is empty.
pub(crate) fn text(x: f64, y: f64, anchor: &str, class: &str, content: &str) -> String {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let content = escaped(content);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{class}>{content}</text>")
}

/// A `<rect>` element at `[x, y, width, height]`, with a tooltip unless `title` is empty.
pub(crate) fn rect([x, y, width, height]: [f64; 4], class: &str, title: &str) -> String {
    let width = width.max(0.0);
    let start = format!(
        "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{height:.1}\" class=\"{class}\""
    );
    match title {
        "" => start + "/>",
        title => format!("{start}><title>{}</title></rect>", escaped(title)),
    }
}

/// A `<line>` element from one point to another.
pub(crate) fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) -> String {
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>")
}
