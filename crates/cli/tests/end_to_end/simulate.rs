//! `forerun simulate`, which needs no model.

use crate::common::{Models, Run};

fn simulate(options: &[&str]) -> Run {
    Run::of("simulate run").with(options)
}

#[test]
fn a_simulated_answer_shows_time_and_timeline() {
    let perfect = ["--acceptance=1", "--draft-tokens=4", "--max-tokens=50", "--cancel=immediate"];
    let output = simulate(&perfect).succeed().output();
    // Ten rounds of four drafts of 3 ms and one pass of 30 ms; plain decoding has fifty passes.
    assert!(output.contains("simulated: 50 tokens in 420.0 ms"), "{output}");
    assert!(output.contains("3.57× plain decoding (1500.0 ms)"), "{output}");
    assert!(
        output.contains("10 target forward passes, 40 tokens drafted, 40 accepted"),
        "{output}"
    );
    let lanes: Vec<&str> = output.lines().take(2).collect();
    assert!(
        lanes[0].starts_with("drafter |DDD") && lanes[1].starts_with("target  |..."),
        "{output}"
    );
    // The same seed gives the same run. A run without drafts is plain decoding.
    let sampled = || simulate(&["--seed=7", "--acceptance=0.6"]).succeed().output();
    assert_eq!(sampled(), sampled());
    let none = simulate(&["--draft-tokens=0", "--max-tokens=10"]).succeed().output();
    assert!(none.contains("1.00× plain decoding (300.0 ms)"), "{none}");
}

#[test]
fn real_time_is_compared_with_virtual_time() {
    let options = ["--real-time", "--target-ms=4", "--draft-ms=1", "--max-tokens=12"];
    let output = simulate(&options).succeed().output();
    let measured = output.lines().find(|line| line.starts_with("measured: 12 tokens in ")).unwrap();
    assert!(measured.ends_with("× virtual time"), "{output}");
    assert!(output.contains("\nsimulated: 12 tokens in "), "{output}");
    let refused = simulate(&["--real-time", "--link-ms=1"]).finish();
    refused.assert_refused("links", &["links", "--real-time"]);
}

#[test]
fn a_timeline_can_be_an_svg_picture() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("timeline.svg");
    let option = format!("--trace={}", picture.display());
    simulate(&[&option, "--max-tokens=10"]).succeed();
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("time (ms)"), "{svg}");
    assert!(svg.contains(">drafter</text>") && svg.contains("class=\"fr-score-rejected\""));
}

#[test]
fn a_sweep_writes_a_table_and_resumes_it() {
    let folder = tempfile::tempdir().unwrap();
    let (file, table) = (folder.path().join("grid.toml"), folder.path().join("grid.csv"));
    std::fs::write(&file, "acceptance = [0, 0.5, 1]\ndraft-tokens = [0, 4]\nmax-tokens = 20")
        .unwrap();
    let sweep = |options: &[&str]| {
        let path = file.display().to_string();
        Run::forerun().with(&["simulate", "sweep", &path]).with(options)
    };
    let notes = sweep(&["--threads=2"]).succeed().errors;
    assert!(notes.contains("6 of 6 configurations") && notes.contains("rounds/s"), "{notes}");
    let rows = std::fs::read_to_string(&table).unwrap();
    assert_eq!(rows.lines().count(), 7);
    let cut: String = rows.split_inclusive('\n').take(4).collect();
    std::fs::write(&table, cut + "cut").unwrap();
    let notes = sweep(&["--threads=1"]).succeed().errors;
    assert!(notes.contains("resuming after 3 rows"), "{notes}");
    assert_eq!(std::fs::read_to_string(&table).unwrap(), rows);
    std::fs::write(&file, "acceptance = [0, 0.5, 1]\nmax-tokens = 20").unwrap();
    sweep(&[]).finish().assert_refused("another sweep", &["another sweep", "--out"]);
    std::fs::write(&file, "acceptance = 2").unwrap();
    sweep(&[]).finish().assert_refused("acceptance = 2", &["grid.toml", "acceptance"]);
}

#[test]
fn simulations_use_a_calibration() {
    let models = Models::pair();
    let file = models.folder().join("pair.toml");
    let calibrate = |options: &[&str]| {
        let run = Run::of("simulate calibrate --max-tokens=12").on_one_core();
        let run = run.with_path("--model", &models.target());
        let run = run.with_path("--draft-model", &models.drafter()).with_path("--out", &file);
        run.words("--prompts=2 --rounds=1").with(options)
    };
    let output = calibrate(&["--prompt-tokens=5", "--check=1,3"]).succeed().output();
    assert!(output.starts_with("the drafter agrees with the target at "), "{output}");
    assert!(output.contains("\nmedian error "), "{output}");
    let lengths: Vec<&str> = output.lines().filter_map(|line| line.split(" | ").next()).collect();
    assert_eq!(lengths[2..4].iter().map(|length| length.trim()).collect::<Vec<_>>(), ["1", "3"]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("# Measured by forerun ") && text.contains("next-ms = "), "{text}");
    // The simulation uses the measured text, times and acceptance.
    let calibration = format!("--calibration={}", file.display());
    let one = simulate(&[&calibration, "--max-tokens=12"]).succeed().output();
    let other = simulate(&[&calibration, "--max-tokens=12", "--target-ms=1000"]).succeed().output();
    assert!(one.contains("simulated: 12 tokens in ") && one != other, "{one}");
    let grid = models.folder().join("grid.toml");
    std::fs::write(&grid, "calibration = 'pair.toml'\ndraft-tokens = [1, 3]\nmax-tokens = 12")
        .unwrap();
    let path = grid.display().to_string();
    Run::forerun().with(&["simulate", "sweep", &path]).succeed();
    let table = std::fs::read_to_string(models.folder().join("grid.csv")).unwrap();
    assert!(table.lines().nth(2).unwrap().contains(",pair.toml@"), "{table}");

    calibrate(&["--prompt-tokens=5", "--check=99"])
        .finish()
        .assert_refused("--check=99", &["--check", "99"]);
    let long = calibrate(&["--prompt-tokens=500"]).finish();
    long.assert_refused("--prompt-tokens=500", &["--prompt-tokens", "context of 512"]);
    std::fs::write(&file, text.replace("next-ms", "last-ms")).unwrap();
    simulate(&[&calibration]).finish().assert_refused("last-ms", &["pair.toml", "last-ms"]);
}

#[cfg(feature = "plots")]
#[test]
fn a_table_is_plotted() {
    let folder = tempfile::tempdir().unwrap();
    let grid = folder.path().join("grid.toml");
    std::fs::write(
        &grid,
        "acceptance = [0, 0.5, 1]\ndraft-tokens = [1, 2, 4]\ndraft-ms = [1, 9]\nmax-tokens = 20",
    )
    .unwrap();
    let path = grid.display().to_string();
    Run::forerun().with(&["simulate", "sweep", &path]).succeed();
    let table = folder.path().join("grid.csv").display().to_string();
    let plot = |options: &[&str], out: &str| {
        let run = Run::forerun().with(&["simulate", "plot", &table, "--x=acceptance"]);
        run.with(options).with_path("--out", &folder.path().join(out))
    };
    let map = ["--y=draft-tokens", "--only=draft-ms=9", "--title=Nine"];
    plot(&map, "map.svg").succeed();
    let svg = std::fs::read_to_string(folder.path().join("map.svg")).unwrap();
    assert!(svg.contains("Nine") && svg.contains("(×), simulated"), "{svg}");
    plot(&["--lines=draft-ms", "--merge=max", "--value=tokens-per-s"], "lines.png").succeed();
    assert!(folder.path().join("lines.png").metadata().unwrap().len() > 5_000);
    let refused = plot(&["--y=draft-tokens"], "map.svg").finish();
    refused.assert_refused("two values", &["draft-ms", "--only", "--merge"]);
    plot(&map, "map.gif").finish().assert_refused("gif", &[".svg or .png"]);
}

#[test]
fn methods_rank_as_expected_for_the_same_drafts() {
    let options = ["--acceptance=0.9", "--draft-ms=3", "--draft-tokens=5", "--targets=3"];
    let speed = |method: &str| {
        let output = simulate(&options).with(&["--method", method]).succeed().output();
        let gain = output.split("tokens/s, ").nth(1).unwrap().split('×').next().unwrap();
        gain.parse::<f64>().unwrap()
    };
    let [plain, speculative, pearl, dsi] =
        ["autoregressive", "speculative", "pearl", "dsi"].map(speed);
    assert_eq!(plain, 1.0);
    assert!(speculative > 2.0 && pearl > speculative && dsi > pearl, "{speculative} {pearl} {dsi}");
}

#[test]
fn invalid_simulations_are_refused() {
    for (option, word) in [
        ("--acceptance=1.5", "acceptance"),
        ("--target-ms=-1", "--target-ms is -1"),
        ("--draft-ms=nan", "draft-ms"),
        ("--targets=2000", "--targets is 2000"),
        ("--drafters=1000000", "drafters"),
        ("--method=magic", "speculative"),
        ("--calibration=nowhere.toml", "nowhere.toml"),
        ("--max-tokens=0", "0 is not in 1..=1000000"),
        ("--layers=0", "set --layers to"),
    ] {
        simulate(&[option]).finish().assert_refused(option, &[word]);
    }
    let folder = tempfile::tempdir().unwrap();
    for option in ["--steps=18446744073709551615", "--threads=1000000"] {
        let run = Run::forerun().with(&["simulate", "heatmaps", option]);
        let run = run.with_path("--out", &folder.path().join("table.csv"));
        run.finish().assert_refused(option, &["is not in 1..="]);
    }
}
