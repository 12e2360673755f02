//! `--trace`: timelines of all devices for Perfetto, as text and as pictures.

use crate::common::{Models, Run};
use forerun::placement::available_cores;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Writes the timeline of an answer, on two devices if there are two cores.
fn write_trace(models: &Models, file: &Path) {
    let run = Run::generate(models).with_path("--draft-model", &models.drafter());
    run.words("-p Hello -n 20 --ignore-eos --draft-tokens 3").with_path("--trace", file).succeed();
}

#[test]
fn a_trace_is_perfetto_json_with_named_lanes() {
    let models = Models::pair();
    let file = models.folder().join("trace.json");
    write_trace(&models, &file);
    let trace: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of_phase = |phase: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["ph"] == phase).collect()
    };
    let (lanes, spans) = (of_phase("M"), of_phase("X"));
    assert_eq!(lanes.len() + spans.len(), events.len());

    let names: Vec<&str> =
        lanes.iter().map(|lane| lane["args"]["name"].as_str().unwrap()).collect();
    for role in ["drafter", "target", "cpu:"] {
        assert!(names.iter().any(|name| name.contains(role)), "{role}: {names:?}");
    }
    for work in ["draft", "score"] {
        assert!(spans.iter().any(|span| span["name"] == work), "no {work}");
    }
    for span in spans {
        assert!(lanes.iter().any(|lane| lane["tid"] == span["tid"]), "{span}");
        assert!(span["ts"].as_f64().unwrap() >= 0.0, "{span}");
        assert!(span["dur"].as_f64().unwrap() > 0.0, "{span}");
    }
}

#[test]
fn a_text_trace_has_a_line_for_each_lane() {
    let models = Models::pair();
    let file = models.folder().join("trace.txt");
    write_trace(&models, &file);
    let picture = fs::read_to_string(&file).unwrap();
    assert!(!picture.is_empty());
    for line in picture.lines() {
        let (name, cells) = line.split_once(" |").unwrap();
        let cells = cells.strip_suffix('|').unwrap();
        assert!(name.contains("cpu:"), "{line}");
        assert!(!cells.is_empty() && cells.len() <= 100, "{line}");
        assert!(cells.chars().all(|cell| ".DdSsx".contains(cell)), "{line}");
    }
    assert!(picture.contains("target") && picture.contains("drafter"), "{picture}");
    assert!(picture.contains(['S', 's']), "{picture}");
}

/// If the target's layers are on two devices, the picture shows when each device worked.
#[test]
fn a_picture_has_a_lane_for_each_device_of_a_split_target() {
    let cores = available_cores();
    let [first, .., last] = cores[..] else { return };
    let models = Models::pair();
    for name in ["trace.txt", "trace.svg"] {
        let file = models.folder().join(name);
        let run = Run::generate(&models).words("-p Hello -n 20 --ignore-eos");
        let placement = format!("target=cpu:{first}/cpu:{last}");
        run.with(&["--placement", &placement]).with_path("--trace", &file).succeed();
        let picture = fs::read_to_string(&file).unwrap();
        assert!(!picture.contains("target"), "{picture}");
        match picture.lines().collect::<Vec<_>>()[..] {
            [on_first, on_last] if name.ends_with("txt") => {
                assert!(on_first.starts_with(&format!("cpu:{first} ")), "{picture}");
                assert!(on_last.starts_with(&format!("cpu:{last} ")), "{picture}");
                assert!(picture.contains('S'), "{picture}");
            }
            _ => {
                let lanes = [first, last].map(|core| format!(">cpu:{core}<"));
                assert!(lanes.iter().all(|lane| picture.contains(lane)), "{picture}");
            }
        }
    }
}

/// Something takes the trace's place while the answer is generated.
#[cfg(target_os = "linux")]
#[test]
fn the_answer_is_printed_even_if_the_trace_cannot_be_written() {
    let models = Models::with_context(1 << 20);
    let trace = models.folder().join("trace.json");
    let run = Run::generate(&models).on_one_core().words("-p Hello --ignore-eos");
    let run = run.words("--max-tokens 1000000").with_path("--trace", &trace);
    let mut running = run.start();
    running.wait_for_output();
    fs::create_dir(&trace).unwrap();
    running.interrupt();
    let finished = running.finish();
    assert_eq!(finished.code, Some(1));
    assert!(finished.errors.contains("tokens/s"), "{}", finished.errors);
    assert!(finished.statistics().contains("error: cannot write"), "{}", finished.errors);
    assert!(finished.statistics().contains("trace.json: it is a folder"), "{}", finished.errors);
}
