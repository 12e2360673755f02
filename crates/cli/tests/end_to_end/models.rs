//! `forerun models`: the cache of hub models, and what a model is.

use crate::common::{Hub, Models, Run, edit_json};
use crate::hub::export;
use std::fs::{self, File};

fn models(hub: &Hub, arguments: &[&str]) -> Run {
    hub.run().words("models").with(arguments)
}

#[test]
fn a_pulled_model_is_listed_shown_and_removed() {
    let pair = Models::pair();
    let hub = Hub::serving(&pair.target());
    let listed = models(&hub, &["list"]).succeed();
    assert_eq!(listed.output(), "");
    assert!(listed.errors.contains("no models in") && listed.errors.contains("models pull"));
    let missing = models(&hub, &["show", "owner/name"]).finish();
    missing.assert_refused("not in the cache", &["forerun models pull"]);

    let pulled = models(&hub, &["pull", "owner/name"]).succeed().output();
    assert!(pulled.trim_end().starts_with(hub.cached().to_str().unwrap()), "{pulled}");
    assert!(std::path::Path::new(pulled.trim_end()).join("config.json").is_file());
    // What is there is not downloaded again.
    hub.take_downloads();
    assert_eq!(
        models(&hub, &["pull", "https://huggingface.co/owner/name"]).succeed().output(),
        pulled
    );
    assert_eq!(hub.take_downloads().len(), 0);

    let output = models(&hub, &["ls"]).succeed().output();
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].starts_with("MODEL") && lines[0].contains("LAST USED"), "{output}");
    assert!(lines[1].starts_with("owner/name") && lines[1].contains("safetensors"), "{output}");
    let list = models(&hub, &["list", "--json"]).succeed().json();
    let list = &list["models"];
    assert_eq!(list[0]["model"], "owner/name");
    assert_eq!(list[0]["revisions"][0]["names"][0], "main");
    let size = |name: &str| fs::metadata(pair.target().join(name)).unwrap().len();
    let files = list[0]["revisions"][0]["files"].as_array().unwrap();
    for file in files {
        assert_eq!(file["bytes"], size(file["name"].as_str().unwrap()));
    }
    assert!(list[0]["bytes"].as_u64().unwrap() >= size("model.safetensors"));

    let shown = models(&hub, &["show", "owner/name"]).succeed().output();
    for line in ["family              llama", "types in memory     f32", "runs here           yes"]
    {
        assert!(shown.lines().any(|other| other == line), "{line}: {shown}");
    }

    // Nobody can be asked.
    models(&hub, &["rm", "owner/name"]).finish().assert_refused("a question", &["--yes"]);
    assert!(hub.cached().exists());
    let unknown = models(&hub, &["rm", "--yes", "owner/name", "owner/other"]).finish();
    unknown.assert_refused("owner/other", &["owner/other is not in the cache", "models list"]);
    assert!(hub.cached().exists(), "all names are checked first");
    let revision = models(&hub, &["rm", "-y", "owner/name@v1"]).finish();
    revision.assert_refused("a revision", &["leave out @"]);
    models(&hub, &["rm", "--yes", "owner/name"]).succeed();
    assert!(!hub.cached().exists());
}

#[test]
fn show_describes_local_models_and_the_demonstration_pair() {
    let pair = Models::pair();
    let show = |options: &[&str]| Run::of("models show").with(&[pair.target()]).with(options);
    let object = show(&["--json"]).succeed().json();
    assert_eq!(object["family"], "llama");
    assert_eq!(object["runs_here"], true);
    assert_eq!(object["size"], object["parameters"].as_u64().unwrap() * 4);
    assert_eq!(object["draft_models"], serde_json::json!([]));
    let text = show(&[]).succeed().output();
    assert!(text.contains("No draft model for it is known; see https://"), "{text}");
    let memory = |options: &[&str]| show(options).succeed().json()["memory"].as_u64().unwrap();
    assert!(memory(&["--json", "--dtype", "bf16"]) < memory(&["--json"]));
    let demo = Run::of("models show demo --template").succeed().output();
    assert!(demo.contains("chat template       its own") && demo.contains("{%"), "{demo}");
    assert!(!demo.contains("draft model"), "it has its own: {demo}");
}

#[test]
fn show_fails_if_a_file_is_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.gguf");
    fs::write(&file, "a text, and no model").unwrap();
    let finished = Run::of("models show").with(&[&file]).finish();
    finished.assert_refused("a text", &["bad.gguf: expected a GGUF file", "begins with"]);
}

#[test]
fn show_says_why_a_model_does_not_run() {
    let pair = Models::pair();
    edit_json(&pair.target().join("config.json"), |config| config["model_type"] = "mamba".into());
    let show = || Run::of("models show").with(&[pair.target()]);
    let object = show().words("--json").succeed().json();
    assert_eq!((&object["family"], &object["runs_here"]), (&"mamba".into(), &false.into()));
    assert!(object["reason"].as_str().unwrap().contains("mamba"), "{object}");
    let text = show().succeed().output();
    assert!(text.contains("runs here           no: "), "{text}");
}

#[test]
fn pull_needs_a_hub_id_that_exists() {
    let pair = Models::pair();
    let hub = Hub::serving(&pair.target());
    models(&hub, &["pull", "owner/none"]).finish().assert_refused("owner/none", &["no such model"]);
    let path = hub.run().words("models pull").with(&[pair.target()]).finish();
    path.assert_refused("a path", &["is not a hub model"]);
    models(&hub, &["pull"]).finish().assert_refused("nothing", &["MODEL"]);
}

#[test]
fn one_gguf_model_of_a_repository_is_removed() {
    let pair = Models::pair();
    let files = pair.folder().join("gguf");
    fs::create_dir(&files).unwrap();
    export(&pair.target(), &files.join("x-Q4_K_M.gguf"));
    export(&pair.drafter(), &files.join("x-Q8_0.gguf"));
    let hub = Hub::serving(&files);
    for id in ["owner/name:Q4_K_M", "owner/name:Q8_0"] {
        models(&hub, &["pull", id]).succeed();
    }
    let list = || models(&hub, &["list", "--json"]).succeed().json()["models"][0].clone();
    let before = list();
    assert_eq!(before["formats"], serde_json::json!(["gguf"]));
    assert_eq!(before["gguf_models"], serde_json::json!(["x-Q4_K_M.gguf", "x-Q8_0.gguf"]));
    let unknown = models(&hub, &["rm", "--yes", "owner/name:Q2_K"]).finish();
    unknown.assert_refused("Q2_K", &["x-Q4_K_M.gguf, x-Q8_0.gguf"]);

    // Another process downloads a file of the model.
    let locks = hub.cached().parent().unwrap().join(".locks/models--owner--name");
    let lock = fs::read_dir(locks).unwrap().next().unwrap().unwrap().path();
    let lock = File::options().write(true).open(lock).unwrap();
    lock.lock().unwrap();
    for id in ["owner/name:Q4_K_M", "owner/name"] {
        models(&hub, &["rm", "--yes", id]).finish().assert_refused(id, &["is being downloaded"]);
    }
    lock.unlock().unwrap();

    models(&hub, &["rm", "--yes", "owner/name:Q4_K_M"]).succeed();
    let after = list();
    assert_eq!(after["gguf_models"], serde_json::json!(["x-Q8_0.gguf"]));
    let size = fs::metadata(files.join("x-Q4_K_M.gguf")).unwrap().len();
    assert_eq!(after["bytes"], before["bytes"].as_u64().unwrap() - size);
    models(&hub, &["rm", "--yes", "owner/name"]).succeed();
    assert_eq!(models(&hub, &["list"]).succeed().output(), "");
}
