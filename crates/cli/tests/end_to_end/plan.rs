//! `forerun plan`: rankings of measured and recorded hardware, plan files and profiles.

use crate::common::{Models, Run};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A plan of a random pair that measures each method once.
fn plan(models: &Models) -> Run {
    let prompts = models.folder().join("prompts.txt");
    fs::write(&prompts, "Hello\n\nOnce upon a time").unwrap();
    let run = Run::of("plan --seconds 0 -n 12 --json");
    let run = run.with_path("--prompts", &prompts).with_path("--model", &models.target());
    let run = run.with_path("--draft-model", &models.drafter());
    run.with_path("--out", &models.folder().join("plan.toml"))
}

fn hardware(file: &Path) -> Run {
    let out = file.with_extension("plan");
    Run::of("plan").with_path("--hardware", file).with_path("--out", &out)
}

#[test]
fn a_plan_is_a_configuration_file_and_a_profile_gives_it_again() {
    let models = Models::pair();
    let profile = models.folder().join("profile.toml");
    let report = plan(&models).words("--dtype bf16").with_path("--save-profile", &profile);
    let report = report.succeed().json();
    assert_eq!(report["costs"], "measured");
    let ranking = report["ranking"].as_array().unwrap();
    let speed = |found: &Value| found["tokens_per_second"].as_f64().unwrap();
    assert!(ranking.is_sorted_by(|a, b| speed(a) >= speed(b)) && speed(&ranking[0]) > 0.0);
    let count = |method: &str| ranking.iter().filter(|found| found["method"] == method).count();
    // Plain decoding once; two drafters with ten lengths; more with two cores.
    assert_eq!(count("autoregressive"), 1);
    assert!(count("speculative") >= 20, "{report}");
    assert!(ranking.iter().all(|found| !found["reason"].as_str().unwrap().is_empty()));
    // The plan is the ranking's first if that was faster side by side, and every command takes it.
    let pays = report["measured"]["speedup"].as_f64().is_some_and(|speedup| speedup >= 1.03);
    let plan_file = models.folder().join("plan.toml");
    let text = fs::read_to_string(&plan_file).unwrap();
    let method = if pays { ranking[0]["method"].as_str().unwrap() } else { "autoregressive" };
    assert!(text.contains(&format!("method = \"{method}\"")), "{text}");
    assert!(text.contains("dtype = \"bf16\""), "{text}");
    let generate = Run::of("generate --prompt Hello -n 4 --json");
    let answer = generate.with_path("--config", &plan_file).succeed().json();
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 4, "{answer}");
    // The saved profile predicts the same without the models.
    let again = hardware(&profile).words("--json").succeed().json();
    assert_eq!(again["ranking"].as_array().unwrap().len(), ranking.len());
    assert_eq!(again["ranking"][0]["method"], ranking[0]["method"]);
}

#[test]
fn a_check_compares_all_predictions() {
    let models = Models::pair();
    let options =
        ["--check", "--check-rounds", "1", "--method", "speculative", "--draft-tokens", "2"];
    let report = plan(&models).with(&options).succeed().json();
    let checked = report["check"]["configurations"].as_array().unwrap();
    assert_eq!(checked.len(), report["ranking"].as_array().unwrap().len());
    for found in checked {
        assert!(found["measured_tokens_per_second"].as_f64().unwrap() > 0.0, "{found}");
    }
    assert!(report["check"]["median_error"].is_f64());
    let first = report["check"]["first_of_best"].as_f64().unwrap();
    assert!(first > 0.0 && first <= 1.0);
}

#[test]
fn estimated_hardware_is_labelled() {
    let folder = tempfile::tempdir().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/profiles/8xa100-70b.toml");
    let file = folder.path().join("a100.toml");
    fs::copy(shipped, &file).unwrap();
    let output = hardware(&file).succeed().output();
    for words in [
        "Predicted speeds (simulated answers of ",
        "estimated costs of eight A100",
        "The costs are estimated",
        "speculative, model, ",
        "\nProbably: ",
        " times as fast as plain decoding (",
        " is predicted to be ",
        "from estimated costs. The two were not measured side by side.",
        "\n    forerun generate --method ",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
    let text = fs::read_to_string(file.with_extension("plan")).unwrap();
    assert!(text.starts_with("# ") && text.contains("estimated"), "{text}");
    fs::write(&file, "source = \"measured\"\n").unwrap();
    hardware(&file).finish().assert_refused("an incomplete profile", &["a100.toml", "hardware"]);
    let drafter = Run::of("plan --drafter lookahead");
    drafter.finish().assert_refused("a drafter", &["lookahead", "cannot be planned"]);
}

/// A drafter that is never right does not pay, and the reason says so.
#[test]
fn a_plan_says_that_drafting_does_not_pay() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slow.toml");
    let text = "source = \"measured\"\nhardware = \"a machine\"\nmodel = \"my model\"\n\
                answer-tokens = 32\n[[drafter]]\nname = \"model\"\nacceptance = 0.0\n\
                [[timing]]\nmethod = \"autoregressive\"\nlink-ms = 0\n\
                target = { model = \"t\", layers = 2, first-ms = 1, rows-ms = [[1, 40.0]] }\n\
                [[timing]]\nmethod = \"speculative\"\ndrafter = \"model\"\nlink-ms = 0\n\
                target = { model = \"t\", layers = 2, first-ms = 1, rows-ms = [[1, 40.0]] }\n\
                draft = { model = \"d\", layers = 1, first-ms = 1, rows-ms = [[1, 10.0]] }\n";
    fs::write(&file, text).unwrap();
    let output = hardware(&file).words("--draft-tokens 2").succeed().output();
    assert!(
        output.contains(
            "\nNo: nothing is predicted to be clearly faster than plain decoding (25 tokens"
        ),
        "{output}"
    );
    assert!(output.contains("Next is speculative, model, 2 draft tokens, with "), "{output}");
    let command = "forerun generate --model 'my model' --method autoregressive --prompt";
    assert!(output.contains(command), "{output}");
}

/// The first answer is much longer than the test.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_plan_without_a_result_says_so() {
    let models = Models::with_context(1 << 20);
    let run = Run::of("plan --seconds 86400 -n 100000").with_models(&models);
    let mut running = run.with_path("--out", &models.folder().join("plan.toml")).start();
    running.wait_for_interrupt_handler();
    running.interrupt();
    let finished = running.finish();
    assert_eq!(finished.code, Some(130), "{}", finished.errors);
    assert!(finished.errors.contains("this takes up to 86400 seconds"), "{}", finished.errors);
    assert!(finished.errors.contains("interrupted before"), "{}", finished.errors);
}

#[test]
fn options_without_effect_on_recorded_hardware_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/profiles/8xa100-70b.toml");
    let file = folder.path().join("a100.toml");
    fs::copy(shipped, &file).unwrap();
    for options in [
        &["--model", "demo"],
        &["--draft-model", "d"],
        &["--dtype", "int8"],
        &["--threads", "1"],
        &["--max-tokens", "9"],
        &["--seconds", "9"],
    ] {
        hardware(&file)
            .with(options)
            .finish()
            .assert_refused("an option", &[options[0], "--hardware"]);
    }
    let table: [(&[&str], &[&str]); 4] = [
        (&["--method", "auto"], &["a100.toml", "no costs of --method auto"]),
        (&["--drafter", "eagle"], &["no costs of --drafter eagle"]),
        (&["--placement", "target=cpu:0"], &["no costs of --placement target=cpu:0"]),
        (&["--tree", "top:2x2"], &["top:2x2", "cannot be planned"]),
    ];
    for (options, words) in table {
        hardware(&file).with(options).finish().assert_refused(options[0], words);
    }
    let report = hardware(&file).words("--method dsi --json").succeed().json();
    let methods = report["ranking"].as_array().unwrap().iter().map(|found| &found["method"]);
    assert!(methods.clone().any(|method| method == "dsi"));
    assert!(methods.clone().all(|method| method == "dsi" || method == "autoregressive"));
}

/// Ranks that compute each layer together are faster than ranks with some layers each.
#[test]
fn placements_on_ranks_are_ranked_by_their_messages() {
    let folder = tempfile::tempdir().unwrap();
    let shipped =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/profiles/4-hosts-70b.toml");
    let file = folder.path().join("hosts.toml");
    let text = fs::read_to_string(shipped).unwrap();
    fs::write(&file, &text).unwrap();
    let speeds = || {
        let report = hardware(&file).words("--top 100 --json").succeed().json();
        assert_eq!(report["costs"], "estimated");
        let speed = |placement: &str| {
            let ranking = report["ranking"].as_array().unwrap().iter();
            let of_placement = ranking.filter(|found| found["placement"] == placement);
            let speeds = of_placement.map(|it| it["tokens_per_second"].as_f64().unwrap());
            speeds.fold(0.0, f64::max)
        };
        [
            "target=rank:0+rank:1+rank:2+rank:3",
            "target=rank:0/rank:1/rank:2/rank:3",
            "drafter=rank:0,target=rank:1+rank:2+rank:3",
            "drafter=rank:0,target=rank:1/rank:2/rank:3",
        ]
        .map(speed)
    };
    let fast = speeds();
    assert!(fast.iter().all(|speed| *speed > 0.0), "{fast:?}");
    assert!(fast[0] > fast[1] && fast[2] > fast[3] && fast[3] > fast[1], "{fast:?}");
    // A slow link takes most from ranks that compute each layer together.
    let fast_link = "latency-ms = 0.002, gigabytes-per-second = 50";
    assert_eq!(text.matches(fast_link).count(), 6);
    let slow_link = "latency-ms = 1, gigabytes-per-second = 1";
    fs::write(&file, text.replace(fast_link, slow_link)).unwrap();
    let slow = speeds();
    assert!(slow[0] < slow[1] && slow[1] < fast[1] && slow[3] < fast[3], "{slow:?}");
}

/// What was recorded is what the drafters do: a replayed answer has as many passes as a real one.
#[test]
fn drafters_on_hidden_states_are_planned_as_they_draft() {
    let family = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.txt");
    fs::write(&prompts, "Once upon a time").unwrap();
    let with_models = |command: &str, drafter: &str| {
        let run = Run::forerun().with(&[command]).with_path("--model", &family.join("target"));
        run.with_path("--draft-model", &family.join(drafter)).words("-n 24 --json")
    };
    for (drafter, kind, chain) in [
        ("eagle", "eagle", "6"),
        ("medusa", "medusa", "3"),
        ("parallelspec-eagle", "parallel", "5"),
    ] {
        for (option, value) in [("draft_tokens", chain), ("tree", "ranked:16")] {
            let named = ["--drafter", kind, &format!("--{}", option.replace('_', "-")), value]
                .map(str::to_owned);
            let options = ["--seconds", "0", "--method", "speculative"];
            let plan = with_models("plan", drafter).with(&options).with(&named);
            let plan = plan
                .with_path("--prompts", &prompts)
                .with_path("--out", &folder.path().join("plan.toml"));
            let report = plan.succeed().json();
            let ranking = report["ranking"].as_array().unwrap();
            // The drafter may also have cores of its own.
            assert!(ranking.len() <= 3, "{report}");
            let planned = ranking.iter().find(|found| found["drafter"] == kind).unwrap();
            assert_eq!(planned[option], value);
            // The size of a tree that is requested for a real answer is fixed by a number of
            // depths.
            let generate = with_models("generate", drafter).with(&[
                "--prompt",
                "Once upon a time",
                "--ignore-eos",
            ]);
            let generate = match option {
                "tree" => generate.with(&named).words("--draft-tokens 16"),
                _ => generate.with(&named),
            };
            let answer = generate.succeed().json();
            let forwards = answer["usage"]["speculative"]["target_forwards"].as_u64().unwrap();
            let passes = format!("{:.2}", 23.0 / (forwards - 1) as f64);
            let reason = planned["reason"].as_str().unwrap();
            assert!(
                reason.contains(&passes),
                "{drafter} {option}: {passes} tokens a pass, {reason}"
            );
        }
    }
}

#[test]
fn a_plan_ranks_chains_and_trees_of_sizes_that_are_chosen_while_decoding() {
    let models = Models::pair();
    let profile = models.folder().join("profile.toml");
    let options = ["--method", "speculative", "--drafter", "model", "--threads", "1"];
    let report = plan(&models).with(&options).with_path("--save-profile", &profile);
    let report = report.succeed().json();
    let ranking = report["ranking"].as_array().unwrap();
    let count =
        |option: &str, value: &str| ranking.iter().filter(|found| found[option] == value).count();
    assert!(count("draft_tokens", "auto") >= 1 && count("draft_tokens", "16") >= 1, "{report}");
    assert_eq!([count("tree", "auto"), count("tree", "ranked:32")], [1; 2], "{report}");
    let text = fs::read_to_string(&profile).unwrap();
    assert!(text.contains("tree = true") && text.contains("auto-scale = "), "{text}");
    let options = fs::read_to_string(models.folder().join("plan.toml")).unwrap();
    assert!(options.contains("threads = \"1\""), "{options}");
    // A tree is checked as it was predicted.
    let options = ["--check", "--check-rounds", "1", "--tree", "ranked:8", "--drafter", "model"];
    let report = plan(&models).with(&options).succeed().json();
    let checked = report["check"]["configurations"].as_array().unwrap();
    assert_eq!(checked.len(), 2);
    assert!(checked.iter().any(|found| found["tree"] == "ranked:8"), "{report}");
}

#[test]
fn what_is_not_simulated_is_refused_by_name() {
    let models = Models::pair();
    let table: [(&[&str], &[&str]); 6] = [
        (&["--tree", "top:2x2"], &["top:2x2", "cannot be planned", "ranked:N and auto"]),
        (&["--tree", "ranked:8", "--draft-tokens", "4"], &["depth of a tree", "leave"]),
        (&["--tree", "auto", "--method", "pearl"], &["the method pearl", "leave --tree out"]),
        (&["--draft-tokens", "assisted"], &["assisted", "cannot be planned"]),
        (&["--drafter", "easyspec"], &["easyspec", "cannot be planned", "eagle"]),
        (&["--drafter", "ouroboros"], &["ouroboros", "cannot be planned"]),
    ];
    for (options, words) in table {
        let what = options.join(" ");
        plan(&models).with(options).finish().assert_refused(&what, words);
    }
    let family = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let eagle = Run::of("plan --method pearl").with_path("--model", &family.join("target"));
    let eagle = eagle.with_path("--draft-model", &family.join("eagle")).finish();
    eagle.assert_refused(
        "eagle under PEARL",
        &["eagle", "the method pearl", "--method speculative"],
    );
}

#[test]
fn a_comparison_shows_the_predictions_of_a_profile() {
    let models = Models::pair();
    let (profile, out) = (models.folder().join("profile.toml"), models.folder().join("out"));
    let planned = plan(&models).words("--method speculative --drafter model");
    planned.with_path("--save-profile", &profile).succeed();
    let compare = |target: &Path, out: &Path| {
        let run = Run::of("bench run --repeats 1 --warm-ups 0");
        let run = run.words("-n 8 --draft-tokens 4,auto --drafter model");
        let run = run.with_path("--suite", &models.folder().join("prompts.txt"));
        let run = run.with_path("--model", target).with_path("--draft-model", &models.drafter());
        run.with_path("--profile", &profile).with_path("--out", out)
    };
    let output = compare(&models.target(), &out).succeed().output();
    assert!(output.contains("% from the prediction"), "{output}");
    let summary = fs::read_to_string(out.join("summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let configurations = summary["configurations"].as_array().unwrap();
    assert_eq!(configurations.len(), 3);
    for found in configurations {
        let number = |name: &str| found["prediction"][name].as_f64().unwrap();
        let ratio = number("measured_tokens_per_second") / number("predicted_tokens_per_second");
        assert!((ratio - 1.0 - number("error")).abs() < 1e-9, "{found}");
    }
    for report in ["report.md", "report.html"] {
        let report = fs::read_to_string(out.join(report)).unwrap();
        assert!(report.contains("Predicted and measured"), "{report}");
    }
    // Under other options the prediction would be wrong, so there is none, and a note says why.
    let with_other = |options: &[&str], folder: &str| {
        let out = models.folder().join(folder);
        let run = compare(&models.target(), &out).with(options).succeed();
        let summary = fs::read_to_string(out.join("summary.json")).unwrap();
        assert!(!summary.contains("predicted_tokens_per_second"), "{options:?}: {summary}");
        run.errors.clone()
    };
    for (options, words) in [
        (["--dtype", "bf16"], ["has no prediction", "--dtype auto", "bf16"]),
        (
            ["--placement", "drafter=cpu:0,target=cpu:0,shared"],
            ["has no prediction", "no costs of it", ""],
        ),
    ] {
        let notes = with_other(&options, options[0].trim_start_matches('-'));
        assert!(words.iter().all(|word| notes.contains(word)), "{options:?}: {notes}");
    }
    let text = fs::read_to_string(&profile).unwrap();
    let elsewhere: Vec<&str> = text
        .lines()
        .map(|line| if line.starts_with("cores = ") { "cores = \"target=cpu:0-63\"" } else { line })
        .collect();
    fs::write(&profile, elsewhere.join("\n")).unwrap();
    let notes = with_other(&[], "elsewhere");
    assert!(notes.contains("the cores target=cpu:0-63"), "{notes}");
    let other = compare(&models.drafter(), &out).finish();
    other.assert_refused("another target", &["the profile is of the model", "--save-profile"]);
}
