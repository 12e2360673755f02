//! Hub models: they give the same text as local models, however their files were downloaded.

use crate::common::{Finished, Hub, Models, Quirk, Run, small_etag};
use crate::speculators::speculator;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Returns the text of a local model for the prompt of [`Hub::generate`].
fn text_from(model: &Path) -> String {
    Run::forerun().with(&Hub::GENERATE).with_path("--model", model).succeed().output()
}

/// Checks the text, and that standard error has only the statistics.
fn assert_text(finished: &Finished, expected: &str) {
    assert_eq!(finished.output(), expected, "{}", finished.errors);
    assert_eq!(finished.errors.lines().count(), 1, "{}", finished.errors);
}

/// Finds the trained checkpoint that tests of real checkpoints use.
fn real_model() -> Option<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("FORERUN_DATA").map_or(default, PathBuf::from);
    let model = folder.join("models/tinystories656k");
    if model.is_dir() {
        return Some(model);
    }
    assert!(
        std::env::var_os("CI").is_none() && std::env::var_os("FORERUN_DATA").is_none(),
        "no {}: set FORERUN_DATA to the folder with models/",
        model.display()
    );
    // This is not captured by the test harness.
    drop(writeln!(std::io::stderr(), "SKIPPED: no {} (set FORERUN_DATA)", model.display()));
    None
}

/// Copies a checkpoint, with its weights in two shards and an index.
fn shard(model: &Path, into: &Path) {
    fs::create_dir(into).unwrap();
    for entry in fs::read_dir(model).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "model.safetensors" {
            fs::write(into.join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
        }
    }
    let bytes = fs::read(model.join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let mut weight_map = BTreeMap::new();
    for shard in 0..2 {
        let file = format!("model-0000{}-of-00002.safetensors", shard + 1);
        let (mut part, mut bytes) = (serde_json::Map::new(), Vec::new());
        let tensors = header.iter().filter(|(name, _)| *name != "__metadata__").enumerate();
        for (_, (name, tensor)) in tensors.filter(|(index, _)| index % 2 == shard) {
            let offset = |at: usize| tensor["data_offsets"][at].as_u64().unwrap() as usize;
            let start = bytes.len();
            bytes.extend_from_slice(&data[offset(0)..offset(1)]);
            let mut tensor = tensor.clone();
            tensor["data_offsets"] = serde_json::json!([start, bytes.len()]);
            part.insert(name.clone(), tensor);
            weight_map.insert(name.clone(), file.clone());
        }
        let part = serde_json::Value::from(part).to_string();
        let length = (part.len() as u64).to_le_bytes();
        fs::write(into.join(file), [&length, part.as_bytes(), &bytes].concat()).unwrap();
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": weight_map }).to_string();
    fs::write(into.join("model.safetensors.index.json"), index).unwrap();
}

#[test]
fn a_hub_model_gives_the_text_of_its_files_and_is_downloaded_once() {
    let models = Models::pair();
    for model in [Some(models.target()), real_model()].into_iter().flatten() {
        let expected = text_from(&model);
        let hub = Hub::serving(&model);
        assert_text(&hub.generate("owner/name").succeed(), &expected);
        assert_eq!(hub.take_downloads().len(), 1);
        assert!(hub.partials().is_empty());
        // A second run only checks for a new version.
        assert_text(&hub.generate("owner/name").succeed(), &expected);
        let requests = hub.take_requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        assert_eq!(requests[0].path, "/api/models/owner/name/revision/main");
        // Offline runs make no requests.
        let offline = hub.generate("owner/name").words("--offline");
        assert_text(&offline.succeed(), &expected);
        let offline = hub.generate("owner/name").variable("HF_HUB_OFFLINE", "1");
        assert_text(&offline.succeed(), &expected);
        assert!(hub.take_requests().is_empty());
    }
}

#[test]
fn shards_and_drafters_are_downloaded_too() {
    let models = Models::pair();
    for (number, model) in [Some(models.target()), real_model()].into_iter().flatten().enumerate() {
        let sharded = models.folder().join(format!("sharded-{number}"));
        shard(&model, &sharded);
        let expected = text_from(&model);
        let hub = Hub::serving(&sharded);
        assert_text(&hub.generate("owner/name").succeed(), &expected);
        assert_eq!(hub.take_downloads().len(), 2);
        assert_text(&hub.generate("owner/name").words("--offline").succeed(), &expected);
        // A missing shard is an error.
        let snapshots = fs::read_dir(hub.cached().join("snapshots")).unwrap();
        let snapshot = snapshots.map(|entry| entry.unwrap().path()).next().unwrap();
        fs::remove_file(snapshot.join("model-00002-of-00002.safetensors")).unwrap();
        let offline = hub.generate("owner/name").words("--offline").finish();
        offline.assert_refused("a missing shard", &["no model-00002-of-00002.safetensors"]);
    }
    let hub = Hub::serving(&models.target());
    hub.publish("other/drafter", "main", &models.drafter());
    let drafted = hub.generate("owner/name").words("--draft-model other/drafter");
    assert_text(&drafted.on_one_core().succeed(), &text_from(&models.target()));
}

/// Medusa and Hydra heads have file names of their own.
#[test]
fn heads_are_downloaded_under_their_own_file_names() {
    use forerun_formats::checkpoint::random_speculator::SpeculatorLayout;
    let models = Models::pair();
    let expected = text_from(&models.target());
    let hub = Hub::serving(&models.target());
    for (layout, drafter) in
        [(SpeculatorLayout::Medusa, "medusa"), (SpeculatorLayout::HydraPlusPlus, "hydra")]
    {
        let heads = speculator(&models, layout);
        let id = format!("heads/{drafter}");
        hub.publish(&id, "main", &heads);
        let run = || {
            let run = hub.generate("owner/name").with(&["--draft-model", &id]);
            run.with(&["--drafter", drafter, "--draft-tokens", "2"]).on_one_core()
        };
        let finished = run().succeed();
        assert_eq!(finished.output(), expected, "{}", finished.errors);
        assert!(finished.statistics().contains(&format!("{drafter}:")), "{}", finished.errors);
        hub.take_requests();
        assert_eq!(run().words("--offline").succeed().output(), expected);
        assert!(hub.take_requests().is_empty());
        // Heads that are only pickled are refused before a large file is downloaded.
        let pickled = models.folder().join("pickled").join(drafter);
        fs::create_dir_all(&pickled).unwrap();
        fs::copy(heads.join("config.json"), pickled.join("config.json")).unwrap();
        fs::write(pickled.join(format!("{drafter}_lm_head.pt")), "PK").unwrap();
        hub.publish(&id, "pickled", &pickled);
        let at = format!("{id}@pickled");
        let refused = hub.generate("owner/name").with(&["--draft-model", &at]).finish();
        let words = ["no safetensors weights, but .pt files", "convert"];
        refused.assert_refused("pickled", &words);
    }
}

/// PARD-2 has its projection in a file of its own.
#[test]
fn the_projection_of_pard_2_is_downloaded_too() {
    use forerun_formats::checkpoint::random_speculator::SpeculatorLayout;
    let models = Models::pair();
    let expected = text_from(&models.target());
    let hub = Hub::serving(&models.target());
    let drafter = speculator(&models, SpeculatorLayout::Pard2);
    let commit = hub.publish("pard/two", "main", &drafter);
    let run = |id: &str, drafter| {
        let run = hub.generate("owner/name").with(&["--draft-model", id]);
        run.with(&["--drafter", drafter, "--draft-tokens", "2"]).on_one_core()
    };
    let finished = run("pard/two", "parallel").succeed();
    assert_eq!(finished.output(), expected, "{}", finished.errors);
    assert!(finished.statistics().contains("parallel:"), "{}", finished.errors);
    hub.take_requests();
    assert_eq!(run("pard/two", "parallel").words("--offline").succeed().output(), expected);
    assert!(hub.take_requests().is_empty());
    // A tool that does not know the file leaves it out.
    let projection = hub.snapshot("pard/two", &commit).join("warp_model.safetensors");
    fs::remove_file(&projection).unwrap();
    let offline = run("pard/two", "parallel").words("--offline").finish();
    offline.assert_refused("no projection", &["no warp_model.safetensors"]);
    assert_eq!(run(&format!("pard/two@{commit}"), "parallel").succeed().output(), expected);
    assert!(projection.is_file());
    // A pickled projection is not read, and the error says how to convert it. The model drafts from
    // tokens alone.
    let pickled = models.folder().join("pickled");
    fs::create_dir_all(&pickled).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(drafter.join(name), pickled.join(name)).unwrap();
    }
    let tokenizer = models.target().join("tokenizer.json");
    fs::copy(tokenizer, pickled.join("tokenizer.json")).unwrap();
    fs::write(pickled.join("warp_model.bin"), b"PK\x03\x04...").unwrap();
    hub.publish("pard/two", "pickled", &pickled);
    let refused = run("pard/two@pickled", "parallel").finish();
    let words = ["warp_model.bin", "weights_only=True", "warp_model.safetensors"];
    refused.assert_refused("pickled", &words);
    for options in [&[][..], &["--offline"]] {
        assert_eq!(run("pard/two@pickled", "model").with(options).succeed().output(), expected);
    }
}

#[test]
fn revisions_are_kept_apart() {
    let models = Models::pair();
    let hub = Hub::serving(&models.target());
    let commit = hub.publish("owner/name", "refs/pr/1", &models.drafter());
    let (main, other) = (text_from(&models.target()), text_from(&models.drafter()));
    assert_ne!(main, other);
    for offline in [&[][..], &["--offline"]] {
        let generate = |id: &str| hub.generate(id).with(offline).succeed();
        assert_text(&generate("owner/name"), &main);
        assert_text(&generate("owner/name@refs/pr/1"), &other);
        hub.take_requests();
        // A commit does not change, so there are no requests for cached files.
        assert_text(&generate(&format!("owner/name@{commit}")), &other);
        assert!(hub.take_requests().is_empty());
    }
    // When the branch changes, only changed files are downloaded.
    hub.publish("owner/name", "main", &models.drafter());
    assert_text(&hub.generate("owner/name").succeed(), &other);
    assert!(hub.take_downloads().is_empty());
}

#[test]
fn an_existing_path_takes_precedence_over_a_hub_id() {
    let models = Models::pair();
    let hub = Hub::serving(&models.target());
    fs::create_dir(models.folder().join("owner")).unwrap();
    fs::rename(models.drafter(), models.folder().join("owner/name")).unwrap();
    let expected = text_from(&models.folder().join("owner/name"));
    assert_text(&hub.generate("owner/name").in_folder(models.folder()).succeed(), &expected);
    assert!(hub.take_requests().is_empty());
}

#[test]
fn an_interrupted_download_resumes() {
    let models = Models::pair();
    let hub = Hub::serving(&models.target());
    let expected = text_from(&models.target());
    hub.quirk(Quirk::Cut(10_000));
    let broken = hub.generate("owner/name").finish();
    let words = ["model.safetensors of owner/name broke off after 10000 of", "run again"];
    broken.assert_refused("cut", &words);
    // An incomplete model is never used.
    let offline = hub.generate("owner/name").words("--offline").finish();
    offline.assert_refused("half a model", &["is not in the cache"]);
    // The connection breaks again.
    hub.quirk(Quirk::Cut(5_000));
    hub.generate("owner/name").finish().assert_refused("cut", &["after 15000 of"]);
    hub.take_requests();
    assert_text(&hub.generate("owner/name").succeed(), &expected);
    let downloads = hub.take_downloads();
    assert_eq!(downloads.len(), 1);
    assert_eq!(downloads[0].headers["range"], "bytes=15000-");
    assert!(hub.partials().is_empty());
}

#[test]
fn valid_partial_files_of_earlier_runs_are_reused() {
    let models = Models::pair();
    let expected = text_from(&models.target());
    let size = fs::metadata(models.target().join("model.safetensors")).unwrap().len();
    // Earlier runs left a complete file that was not renamed, a file that is too long, and garbage.
    let whole = |partial: &Path| {
        fs::copy(models.target().join("model.safetensors"), partial).unwrap();
    };
    let too_much = |partial: &Path| fs::write(partial, vec![7; size as usize + 1]).unwrap();
    for (leave, ranges) in [(&whole as &dyn Fn(&Path), &[][..]), (&too_much, &[None])] {
        let hub = Hub::serving(&models.target());
        hub.quirk(Quirk::Cut(100));
        hub.generate("owner/name").finish().assert_refused("cut", &["after 100 of"]);
        leave(&hub.partials()[0]);
        hub.take_requests();
        assert_text(&hub.generate("owner/name").succeed(), &expected);
        let downloads = hub.take_downloads();
        let found: Vec<_> =
            downloads.iter().map(|request| request.headers.get("range").cloned()).collect();
        assert_eq!(found, ranges);
    }
    let hub = Hub::serving(&models.target());
    hub.quirk(Quirk::Cut(100));
    hub.generate("owner/name").finish().assert_refused("cut", &["after 100 of"]);
    fs::write(&hub.partials()[0], [7; 100]).unwrap();
    hub.generate("owner/name").finish().assert_refused("garbage", &["SHA-256", "run again"]);
    assert!(hub.partials().is_empty());
    assert_text(&hub.generate("owner/name").succeed(), &expected);
}

#[test]
fn a_server_that_ignores_ranges_sends_the_whole_file_again() {
    let models = Models::pair();
    let hub = Hub::serving(&models.target());
    hub.quirk(Quirk::IgnoreRanges);
    hub.quirk(Quirk::Cut(10_000));
    hub.generate("owner/name").finish().assert_refused("cut", &["after 10000 of"]);
    assert_text(&hub.generate("owner/name").succeed(), &text_from(&models.target()));
    assert_eq!(hub.take_downloads()[1].headers["range"], "bytes=10000-");
}

#[test]
fn the_whole_file_is_requested_from_a_server_that_refuses_ranges() {
    let models = Models::pair();
    let hub = Hub::serving(&models.target());
    hub.quirk(Quirk::RefuseRanges);
    hub.quirk(Quirk::Cut(10_000));
    hub.generate("owner/name").finish().assert_refused("cut", &["after 10000 of"]);
    assert_text(&hub.generate("owner/name").succeed(), &text_from(&models.target()));
    let ranges =
        hub.take_downloads().into_iter().map(|request| request.headers.get("range").cloned());
    assert_eq!(ranges.collect::<Vec<_>>(), [None, Some("bytes=10000-".to_owned()), None]);
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_ends_a_download_at_once_and_the_next_run_resumes_it() {
    let models = Models::pair();
    let hub = Hub::serving(&models.target());
    hub.quirk(Quirk::Stall(10_000));
    let mut running = hub.generate("owner/name").with_default_interrupts().start();
    let since = Instant::now();
    let has_started =
        || hub.partials().iter().any(|partial| fs::metadata(partial).unwrap().len() == 10_000);
    while !has_started() {
        assert!(since.elapsed() < Duration::from_secs(60), "the download does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    running.interrupt();
    let finished = running.finish();
    // The signal ended it; shells report 130.
    assert_eq!((finished.code, &*finished.errors), (None, ""));
    hub.take_requests();
    assert_text(&hub.generate("owner/name").succeed(), &text_from(&models.target()));
    assert_eq!(hub.take_downloads()[0].headers["range"], "bytes=10000-");
}

#[test]
fn simultaneous_runs_download_a_file_once() {
    let models = Models::pair();
    let hub = Hub::serving(&models.target());
    let running: Vec<_> = (0..3).map(|_| hub.generate("owner/name").start()).collect();
    let expected = text_from(&models.target());
    for running in running {
        let finished = running.finish();
        assert_eq!(finished.code, Some(0), "{}", finished.errors);
        assert_text(&finished, &expected);
    }
    assert_eq!(hub.take_downloads().len(), 1);
}

#[test]
fn the_cache_is_laid_out_as_other_tools_expect() {
    let models = Models::pair();
    fs::write(models.target().join("README.md"), "not needed").unwrap();
    fs::write(models.target().join("pytorch_model.bin"), "not needed").unwrap();
    let hub = Hub::start();
    let commit = hub.publish("owner/name", "main", &models.target());
    hub.generate("owner/name").succeed();
    assert_eq!(fs::read_to_string(hub.cached().join("refs/main")).unwrap(), commit);
    let snapshot = hub.cached().join("snapshots").join(commit);
    let config = fs::read(models.target().join("config.json")).unwrap();
    assert_eq!(fs::read(snapshot.join("config.json")).unwrap(), config);
    assert!(hub.cached().join("blobs").join(small_etag(&config)).is_file());
    #[cfg(unix)]
    assert_eq!(
        fs::read_link(snapshot.join("config.json")).unwrap(),
        Path::new("../../blobs").join(small_etag(&config))
    );
    // Only files that a model needs are downloaded.
    assert!(!snapshot.join("README.md").exists());
    assert!(!snapshot.join("pytorch_model.bin").exists());
    // `HF_HUB_CACHE` sets the directory of the cache.
    let elsewhere = tempfile::tempdir().unwrap();
    hub.generate("owner/name").variable("HF_HUB_CACHE", elsewhere.path()).succeed();
    assert!(elsewhere.path().join("models--owner--name/refs/main").is_file());
}

pub(crate) fn export(model: &Path, file: &Path) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    Run::of("export --type f32").with_path("--model", model).with_path("--gguf", file).succeed();
}

/// A repository of GGUF files. Both models are stored as f32, whatever their names say.
#[test]
fn a_quantization_names_a_gguf_file() {
    let models = Models::pair();
    let files = models.folder().join("gguf");
    export(&models.target(), &files.join("x-Q4_K_M.gguf"));
    export(&models.drafter(), &files.join("Q8_0/x-Q8_0.gguf"));
    fs::write(files.join("mmproj-Q4_0.gguf"), "not needed").unwrap();
    fs::write(files.join("README.md"), "not needed").unwrap();
    let hub = Hub::serving(&files);
    let (target, drafter) = (text_from(&models.target()), text_from(&models.drafter()));
    let generate = |id: &str| hub.generate(id);
    generate("owner/name:Q8_0").words("--offline").finish().assert_refused("empty", &["cache"]);
    for offline in [&[][..], &["--offline"]] {
        for (id, expected) in [
            ("owner/name:q8_0", &drafter),
            ("owner/name:Q4_K_M", &target),
            ("owner/name:Q4_K_M@main", &target),
            ("owner/name", &target),
        ] {
            hub.take_requests();
            assert_text(&generate(id).with(offline).succeed(), expected);
        }
    }
    assert!(hub.take_requests().is_empty());
    let words = ["no GGUF file whose name contains \"Q5\"", "x-Q4_K_M.gguf", "Q8_0/x-Q8_0.gguf"];
    generate("owner/name:Q5").finish().assert_refused("unknown", &words);
    let words = ["not in the cache", "no GGUF file of type Q5"];
    generate("owner/name:Q5").words("--offline").finish().assert_refused("unknown", &words);
    let snapshots = fs::read_dir(hub.cached().join("snapshots")).unwrap();
    let snapshot = snapshots.map(|entry| entry.unwrap().path()).next().unwrap();
    assert!(!snapshot.join("mmproj-Q4_0.gguf").exists());
    assert!(!snapshot.join("README.md").exists());
}

/// Safetensors take precedence, and a drafter may be a GGUF file of the same repository.
#[test]
fn a_repository_may_have_both_formats() {
    let models = Models::pair();
    export(&models.drafter(), &models.target().join("drafter-F32.gguf"));
    let hub = Hub::serving(&models.target());
    let (target, drafter) = (text_from(&models.target()), text_from(&models.drafter()));
    assert_text(&hub.generate("owner/name").succeed(), &target);
    assert_text(&hub.generate("owner/name:F32").succeed(), &drafter);
    let drafted = hub.generate("owner/name").words("--draft-model owner/name:F32");
    assert_text(&drafted.on_one_core().words("--offline").succeed(), &target);
}

/// The parts are those of another engine's model, whose vocabulary has no tokenizer.
#[test]
fn all_parts_of_a_split_file_are_downloaded() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/gguf/goldens");
    let folder = tempfile::tempdir().unwrap();
    let parts = [1, 2, 3].map(|number| format!("split-0000{number}-of-00003.gguf"));
    for part in &parts {
        fs::copy(goldens.join(part), folder.path().join(part)).unwrap();
    }
    let hub = Hub::serving(folder.path());
    let finished = hub.generate("owner/name:split").finish();
    finished.assert_refused("no tokenizer", &["tokenizer", "split-00001-of-00003.gguf"]);
    let snapshots = fs::read_dir(hub.cached().join("snapshots")).unwrap();
    let snapshot = snapshots.map(|entry| entry.unwrap().path()).next().unwrap();
    assert!(parts.iter().all(|part| snapshot.join(part).is_file()));
    fs::remove_file(snapshot.join(&parts[1])).unwrap();
    let offline = hub.generate("owner/name:split").words("--offline").finish();
    offline.assert_refused("a missing part", &["no split-00002-of-00003.gguf"]);
}
