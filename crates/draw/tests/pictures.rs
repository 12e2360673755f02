//! Plots of a small table contain every label, on a machine without fonts as well.
#![cfg(feature = "plots")]
#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_draw::plot::{Heatmap, Lines, Merge, Picture, PlotError, Table};
use std::fs;
use std::path::Path;

fn table(folder: &Path) -> Table {
    let mut text = String::from("acceptance,draft-ms,draft-tokens,version,speedup\n");
    for (a, acceptance) in [0.0, 0.25, 0.5, 0.75, 1.0].iter().enumerate() {
        for (d, draft_ms) in [1, 2, 4, 8].iter().enumerate() {
            for tokens in [2, 10] {
                let speedup = 0.5 + a as f64 * 0.4 - d as f64 * 0.1 + f64::from(tokens) * 0.01;
                text += &format!("{acceptance},{draft_ms},{tokens},0.1.0,{speedup}\n");
            }
        }
    }
    let file = folder.join("table.csv");
    fs::write(&file, text).unwrap();
    Table::read(&file).unwrap()
}

/// Returns a heatmap and lines of the table.
fn plots(folder: &Path) -> (Heatmap, Lines) {
    let all = table(folder);
    let some = all.clone().only("draft-tokens", "2.0").unwrap();
    let value = ("speedup", ", simulated");
    let heatmap =
        Heatmap::new(&some, ["acceptance", "draft-ms"], value, Merge::Refuse, "A <title>").unwrap();
    let by = ("acceptance", Some("draft-tokens"));
    (heatmap, Lines::new(&all, by, value, Merge::Max, "Lines").unwrap())
}

#[test]
fn heatmaps_and_lines_are_labelled() {
    let folder = tempfile::tempdir().unwrap();
    let (heatmap, lines) = plots(folder.path());
    let svg = folder.path().join("a.svg");
    heatmap.write(&svg).unwrap();
    let text = fs::read_to_string(&svg).unwrap();
    for words in [
        "A &lt;title&gt;",
        "acceptance probability",
        "drafter forward pass (ms)",
        "speedup over plain decoding (×), simulated",
    ] {
        assert!(text.contains(words), "{words}");
    }
    // Twenty cells and the colour bar.
    assert!(text.matches("<rect").count() > 20 + 100 && !text.contains("NaN"));

    lines.write(&svg).unwrap();
    let text = fs::read_to_string(&svg).unwrap();
    let (two, ten) = (text.find("draft-tokens 2").unwrap(), text.find("draft-tokens 10").unwrap());
    assert!(two < ten && text.matches("<polyline").count() >= 2);
}

#[cfg(feature = "png")]
#[test]
fn heatmaps_and_lines_can_be_png_files() {
    let folder = tempfile::tempdir().unwrap();
    let (heatmap, lines) = plots(folder.path());
    let png = folder.path().join("a.png");
    for (name, bytes) in [("heatmap", png_size(&heatmap, &png)), ("lines", png_size(&lines, &png))]
    {
        assert!(bytes > 5_000, "{name} is almost empty: {bytes} bytes");
    }
}

#[cfg(feature = "png")]
fn png_size(picture: &impl Picture, file: &Path) -> usize {
    picture.write(file).unwrap();
    let bytes = fs::read(file).unwrap();
    assert_eq!(&bytes[1..4], b"PNG");
    bytes.len()
}

#[test]
fn errors_name_what_cannot_be_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let all = table(folder.path());
    let value = ("speedup", "");
    let axes = ["acceptance", "draft-ms"];
    let error = Heatmap::new(&all, axes, value, Merge::Refuse, "").unwrap_err().to_string();
    assert!(error.contains("draft-tokens") && !error.contains("speedup,"), "{error}");
    let error = Heatmap::new(&all, ["speed", "draft-ms"], value, Merge::Max, "").unwrap_err();
    assert!(matches!(error, PlotError::NoColumn { .. }), "{error}");
    let error = Heatmap::new(&all, axes, ("version", ""), Merge::Max, "").unwrap_err();
    assert!(matches!(error, PlotError::NotANumber { .. }), "{error}");
    let none = all.clone().only("acceptance", "7").unwrap();
    let error = Lines::new(&none, ("acceptance", None), value, Merge::Mean, "").unwrap_err();
    assert!(matches!(error, PlotError::Empty));
    let lines = Lines::new(&all, ("acceptance", None), value, Merge::Mean, "").unwrap();
    let error = lines.write(&folder.path().join("a.gif")).unwrap_err();
    assert!(matches!(error, PlotError::Format(_)), "{error}");
    let formats = if cfg!(feature = "png") { ".svg or .png" } else { "the feature `png`" };
    assert!(error.to_string().contains(formats), "{error}");
    let malformed = folder.path().join("malformed.csv");
    fs::write(&malformed, "a,b\n1,2\n3\n").unwrap();
    assert!(matches!(Table::read(&malformed), Err(PlotError::Row { line: 3, .. })));
}
