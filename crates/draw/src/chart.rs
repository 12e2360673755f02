//! Charts of benchmark reports as inline SVG. Their colours are classes of the page (`c0` to `c7`,
//! `l0` to `l7`, `grid`, `rule`, `error`), so that they follow its light and dark theme.

use crate::svg::{escaped, line as stroke, rect, text};

/// Width of every chart in its own units. The page scales it; text stays legible on a phone.
const WIDTH: f64 = 480.0;
/// Room for the number after a bar.
const NUMBER: f64 = 84.0;
/// Height of a bar.
const THICKNESS: f64 = 18.0;
/// Where bars begin.
const LEFT: f64 = 8.0;

/// A mean, with its standard deviation where there are several measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: Option<f64>,
}

/// Formats a number with about three significant digits and without an exponent.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        // Rounding errors around zero.
        size if size < 5e-5 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn frame(height: f64, label: &str, content: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">{content}</svg>\n",
        escaped(label)
    )
}

/// A bar: its name, the number of its colour, its length.
pub type Bar = (String, usize, Value);

/// A curve over draft positions: its name, the number of its colour, and a value for each position
/// from 1 on.
pub type Curve = (String, usize, Vec<Option<Value>>);

/// Draws bars in groups, with error bars for the deviations, and a vertical rule at `line_at`.
#[must_use]
pub fn bars(label: &str, groups: &[(String, Vec<Bar>)], line_at: f64) -> String {
    let all = groups.iter().flat_map(|group| &group.1);
    let reach = |(_, _, m): &Bar| m.mean + m.deviation.unwrap_or(0.0);
    let most = all.map(reach).fold(line_at, f64::max);
    let scale = (WIDTH - LEFT - NUMBER) / most.max(f64::MIN_POSITIVE);
    let (mut content, mut y) = (String::new(), 4.0);
    for (name, bars) in groups {
        y += 18.0;
        content += &text(LEFT, y - 4.0, "start", "", name);
        for (title, colour, measured) in bars {
            let end = LEFT + measured.mean * scale;
            let deviation =
                measured.deviation.map_or(String::new(), |d| format!(" ± {}", number(d)));
            let value = number(measured.mean) + &deviation;
            let title = format!("{title}: {value}");
            content +=
                &rect([LEFT, y, end - LEFT, THICKNESS - 3.0], &format!("c{}", colour % 8), &title);
            let spread = measured.deviation.unwrap_or(0.0) * scale;
            let middle = y + (THICKNESS - 3.0) / 2.0;
            content += &stroke(((end - spread).max(LEFT), middle), (end + spread, middle), "error");
            content += &text(end + spread + 6.0, y + 12.0, "start", "", &value);
            y += THICKNESS;
        }
        y += 8.0;
    }
    // The rule is drawn first, so that the number of a short bar stays legible on top of it.
    let rule = stroke((LEFT + line_at * scale, 4.0), (LEFT + line_at * scale, y), "rule");
    frame(y + 4.0, label, &(rule + &content))
}

/// A line of a chart.
pub struct Line {
    /// Its name in tooltips.
    pub name: String,
    /// The number of its colour.
    pub colour: usize,
    /// Its points, in ascending order of x.
    pub points: Vec<(usize, Value)>,
}

/// The axes of a line chart.
pub struct Axes<'a> {
    /// The chart's accessible name.
    pub label: &'a str,
    /// What the whole numbers of the x axis mean.
    pub x: &'a str,
    /// Whether values are shown as percentages from 0 to 100; otherwise from 0 to the largest one.
    pub share: bool,
}

/// Draws curves from 0 to 100 % over draft positions.
#[must_use]
pub fn curves(label: &str, curves: &[Curve]) -> String {
    let line = |(name, colour, rates): &Curve| {
        let points = (1..).zip(rates).filter_map(|(at, rate)| Some((at, (*rate)?)));
        Line { name: name.clone(), colour: *colour, points: points.collect() }
    };
    let lines: Vec<Line> = curves.iter().map(line).collect();
    self::lines(&Axes { label, x: "position", share: true }, &lines)
}

/// Draws lines with error bars for the deviations.
#[must_use]
pub fn lines(axes: &Axes<'_>, lines: &[Line]) -> String {
    let (top, bottom, left, right) = (12.0, 250.0, 44.0, WIDTH - 12.0);
    let points = || lines.iter().flat_map(|line| &line.points);
    let first = points().map(|point| point.0).min().unwrap_or(0);
    let last = points().map(|point| point.0).max().unwrap_or(0).max(first + 1);
    let reach = points().map(|(_, value)| value.mean + value.deviation.unwrap_or(0.0));
    let most = if axes.share { 1.0 } else { reach.fold(f64::MIN_POSITIVE, f64::max) };
    let x = |at: usize| left + (right - left) * (at - first) as f64 / (last - first) as f64;
    let y = |value: f64| bottom - (bottom - top) * (value / most).clamp(0.0, 1.0);
    let mut content = String::new();
    for quarter in 0..=4 {
        let value = most * f64::from(quarter) / 4.0;
        content += &stroke((left, y(value)), (right, y(value)), "grid");
        let shown = if axes.share { format!("{:.0} %", value * 100.0) } else { number(value) };
        content += &text(left - 6.0, y(value) + 4.0, "end", "", &shown);
    }
    for at in first..=last {
        content += &text(x(at), bottom + 18.0, "middle", "", &at.to_string());
    }
    for Line { name, colour, points: of_line } in lines {
        let class = format!("l{}", colour % 8);
        let mut points = String::new();
        for &(at, Value { mean, deviation }) in of_line {
            points += &format!("{:.1},{:.1} ", x(at), y(mean));
            let spread = deviation.unwrap_or(0.0);
            content += &stroke((x(at), y(mean - spread)), (x(at), y(mean + spread)), "error");
            let shown =
                if axes.share { format!("{} %", number(mean * 100.0)) } else { number(mean) };
            let title = format!("{name}, {} {at}: {shown}", axes.x);
            content += &format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" class=\"c{}\"><title>{}</title></circle>",
                x(at),
                y(mean),
                colour % 8,
                escaped(&title)
            );
        }
        content += &format!("<polyline points=\"{}\" class=\"{class}\"/>", points.trim_end());
    }
    frame(bottom + 28.0, axes.label, &content)
}

/// Draws one bar for each row, divided into shares that add up to 1; `classes` colours the shares.
#[must_use]
pub fn stacks(label: &str, rows: &[(String, Vec<(String, f64)>)], classes: &[&str]) -> String {
    let (mut content, mut y) = (String::new(), 4.0);
    for (name, parts) in rows {
        y += 18.0;
        content += &text(LEFT, y - 4.0, "start", "", name);
        let mut x = LEFT;
        for ((part, share), class) in parts.iter().zip(classes) {
            let width = share * (WIDTH - 2.0 * LEFT);
            let title = format!("{name}, {part}: {} %", number(share * 100.0));
            content += &rect([x, y, width, THICKNESS], class, &title);
            x += width;
        }
        y += THICKNESS + 8.0;
    }
    frame(y + 4.0, label, &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits() {
        let shown = [1e-16, 0.00123, 0.1234, 1.234, 12.34, 123.4, -12.34].map(number);
        assert_eq!(shown, ["0", "0.0012", "0.12", "1.23", "12.3", "123", "-12.3"]);
    }

    #[test]
    fn lines_reach_from_the_first_to_the_last_point() {
        let at = |mean| Value { mean, deviation: None };
        let points = vec![(1, at(50.0)), (3, at(100.0)), (5, at(25.0))];
        let line = Line { name: "a <b>".into(), colour: 9, points };
        let chart = lines(&Axes { label: "speed", x: "lp", share: false }, &[line]);
        assert!(
            chart.contains("points=\"44.0,131.0 256.0,12.0 468.0,190.5\" class=\"l1\""),
            "{chart}"
        );
        assert!(
            chart.contains("a &lt;b&gt;, lp 5: 25.0") && chart.contains(">100</text>"),
            "{chart}"
        );
        let none = lines(&Axes { label: "speed", x: "lp", share: false }, &[]);
        assert!(!none.contains("NaN") && !none.contains("inf"), "{none}");
        let rates = [("r".to_owned(), 2, vec![None, Some(at(0.5))])];
        assert!(curves("accepted", &rates).contains("r, position 2: 50.0 %"));
    }

    #[test]
    fn numbers_of_short_bars_are_drawn_over_the_rule() {
        let bar = |mean, deviation| ("a".to_owned(), 1, Value { mean, deviation: Some(deviation) });
        let groups = [("first".to_owned(), vec![bar(0.5, 0.1), bar(2.0, 0.1)])];
        let chart = bars("speed", &groups, 1.0);
        let rule = chart.find("class=\"rule\"");
        assert!(
            rule.is_some() && rule < chart.find("<text") && rule < chart.find("<rect"),
            "{chart}"
        );
        // Each number begins after the end of its error bar, and ends within the picture.
        let attribute = |part: &str, name: &str| -> f64 {
            let rest = &part[part.find(name).map_or(0, |at| at + name.len())..];
            rest[..rest.find('"').unwrap_or(0)].parse().unwrap_or(f64::NAN)
        };
        let lines = chart.split("<line ").filter(|part| part.contains("class=\"error\""));
        for part in lines {
            let number = part.split("<text ").nth(1).unwrap_or_default();
            let (end, start) = (attribute(part, "x2=\""), attribute(number, "x=\""));
            assert!(start > end + 4.0 && start < WIDTH - 60.0, "{end} {start} in {part}");
        }
    }
}
