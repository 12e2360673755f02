//! Hub models that cannot be loaded: error messages, and a cache without damaged files.

use crate::common::{Hub, Models, Quirk};
use std::fs;

#[test]
fn a_file_with_a_wrong_hash_is_an_error_and_is_deleted() {
    let models = Models::pair();
    let hub = Hub::serving(&models.target());
    hub.quirk(Quirk::Damage);
    let finished = hub.generate("owner/name").finish();
    let words = ["model.safetensors of owner/name is damaged", "SHA-256", "deleted", "run again"];
    finished.assert_refused("damaged", &words);
    assert!(hub.partials().is_empty());
    let offline = hub.generate("owner/name").words("--offline").finish();
    offline.assert_refused("nothing stays", &["is not in the cache"]);
    hub.generate("owner/name").succeed();
}

#[test]
fn small_files_are_verified_too() {
    let hub = Hub::serving(&Models::pair().target());
    hub.quirk(Quirk::DamageSmall("tokenizer.json"));
    let finished = hub.generate("owner/name").finish();
    let words = ["tokenizer.json of owner/name is damaged", "SHA-1", "deleted", "run again"];
    finished.assert_refused("damaged", &words);
    assert!(hub.partials().is_empty());
    hub.generate("owner/name").succeed();
}

/// Damage in the cache is found only when the file is read.
#[test]
fn the_error_for_a_damaged_cached_file_advises_to_delete_it() {
    let hub = Hub::serving(&Models::pair().target());
    hub.generate("owner/name").succeed();
    let snapshots = fs::read_dir(hub.cached().join("snapshots")).unwrap();
    let snapshot = snapshots.map(|entry| entry.unwrap().path()).next().unwrap();
    for file in ["config.json", "tokenizer.json"] {
        let content = fs::canonicalize(snapshot.join(file)).unwrap();
        let size = fs::metadata(&content).unwrap().len() as usize;
        fs::write(&content, "{".repeat(size)).unwrap();
        let finished = hub.generate("owner/name").finish();
        let advice = format!("delete {} and run again", content.display());
        finished.assert_refused(file, &[file, &advice]);
        fs::remove_file(&content).unwrap();
        hub.generate("owner/name").succeed();
    }
}

#[test]
fn offline_without_the_model_says_how_to_fetch_it() {
    let hub = Hub::serving(&Models::pair().target());
    let words = [
        "owner/name@v2 is not a path on this machine",
        "not in the cache",
        "HF_HUB_OFFLINE",
        "hf download owner/name --revision v2",
    ];
    let run = || hub.generate("owner/name@v2");
    run().words("--offline").finish().assert_refused("--offline", &words);
    for yes in ["1", "ON", "true"] {
        run().variable("HF_HUB_OFFLINE", yes).finish().assert_refused(yes, &words);
    }
    let devices = ["devices", "--offline", "--model", "owner/name@v2"];
    hub.run().with(&devices).finish().assert_refused("devices", &words);
    assert!(hub.take_requests().is_empty());
    let online = run().variable("HF_HUB_OFFLINE", "0").finish();
    online.assert_refused("not offline", &["no revision v2"]);
}

#[test]
fn an_address_that_does_not_answer_is_named() {
    let models = Models::pair();
    let hub = Hub::serving(&models.target());
    // Nothing listens on this port, which no other test can get.
    let endpoint = "http://127.0.0.1:1";
    let run = || hub.generate("owner/name").variable("HF_ENDPOINT", endpoint);
    let words = [
        &format!("cannot reach {endpoint}/api/models/owner/name/revision/main"),
        "check the network and HF_ENDPOINT",
    ];
    run().finish().assert_refused("no server", &words);
    // A model in the cache is used, with a notice.
    hub.generate("owner/name").succeed();
    let finished = run().succeed();
    let notice = "the hub cannot be reached: owner/name comes from the cache";
    assert!(finished.errors.contains(notice), "{}", finished.errors);
    run().words("--offline").succeed();
}

#[test]
fn missing_models_and_revisions_are_reported_by_name() {
    let models = Models::pair();
    let hub = Hub::serving(&models.target());
    let words = ["nobody/nothing is not a path on this machine", "no such model", "HF_TOKEN"];
    hub.generate("nobody/nothing").finish().assert_refused("no model", &words);
    let words = ["the hub model owner/name has no revision v9"];
    hub.generate("owner/name@v9").finish().assert_refused("no revision", &words);
    // Paths get the error for files.
    for path in ["no/such/model", "./model", "models/model.bin", "model"] {
        let finished = hub.generate(path).finish();
        finished.assert_refused(path, &["no such file or directory", "owner/name@revision"]);
    }
}

#[test]
fn a_token_gives_access_and_is_sent_only_to_the_hub() {
    let models = Models::pair();
    let hub = Hub::serving(&models.target());
    hub.quirk(Quirk::Token("secret"));
    let words = ["does not give access to owner/name (401", "may not exist", "set HF_TOKEN"];
    hub.generate("owner/name").finish().assert_refused("no token", &words);
    let wrong = hub.generate("owner/name").variable("HF_TOKEN", "wrong").finish();
    wrong.assert_refused("wrong token", &["(401", "the token (HF_TOKEN) may not read it"]);
    assert!(!wrong.errors.contains("wrong"), "{}", wrong.errors);
    hub.take_requests();
    hub.generate("owner/name").variable("HF_TOKEN", "secret").succeed();
    for request in hub.take_requests() {
        let elsewhere = request.path.starts_with("/cdn/");
        assert_eq!(request.headers.contains_key("authorization"), !elsewhere, "{request:?}");
    }
    // Another port is another server, even on the same host.
    let other = Hub::serving(&models.target());
    let hub = Hub::serving(&models.target());
    hub.quirk(Quirk::Token("secret"));
    hub.quirk(Quirk::Elsewhere(other.port()));
    hub.generate("owner/name").variable("HF_TOKEN", "secret").succeed();
    let requests = other.take_requests();
    assert_eq!(requests.len(), 1);
    assert!(!requests[0].headers.contains_key("authorization"), "{requests:?}");
}

#[test]
fn errors_of_the_hub_give_advice() {
    let hub = Hub::serving(&Models::pair().target());
    for (status, code, words) in [
        (401, "GatedRepo", &["owner/name is gated", "accept its conditions", "HF_TOKEN"][..]),
        (403, "GatedRepo", &["owner/name is gated (403"]),
        (403, "", &["does not give access to owner/name (403", "HF_TOKEN"]),
        (404, "", &["no such model"]),
        (429, "", &["answered 429", "try again later"]),
        (503, "", &["answered 503", "try again later"]),
    ] {
        hub.without_quirks();
        hub.quirk(Quirk::Refuse(status, code));
        hub.generate("owner/name").finish().assert_refused(code, words);
    }
}

#[test]
fn repositories_without_safetensors_are_refused_before_downloading() {
    let models = Models::pair();
    let model = models.target();
    fs::rename(model.join("model.safetensors"), model.join("pytorch_model.bin")).unwrap();
    fs::write(model.join("model.onnx"), "").unwrap();
    let hub = Hub::serving(&model);
    let words = ["owner/name has no safetensors weights", ".bin and .onnx", "GGUF files"];
    hub.generate("owner/name").finish().assert_refused("other weights", &words);
    fs::remove_file(model.join("config.json")).unwrap();
    hub.publish("owner/name", "main", &model);
    hub.generate("owner/name").finish().assert_refused("no config", &["has no config.json"]);
    hub.generate("owner/name:Q8_0").finish().assert_refused("no GGUF", &["has no GGUF file"]);
    assert_eq!(hub.take_requests().len(), 3);
}

#[test]
fn etags_that_lead_out_of_the_cache_are_refused() {
    let hub = Hub::serving(&Models::pair().target());
    hub.quirk(Quirk::Etag("../../../../outside"));
    let finished = hub.generate("owner/name").finish();
    finished.assert_refused("ETag", &["not a hub's", "ETag", "check HF_ENDPOINT"]);
    assert!(!hub.cached().join("blobs").exists());
}

#[test]
fn missing_shards_and_shards_outside_the_model_are_refused() {
    let models = Models::pair();
    let model = models.target();
    fs::remove_file(model.join("model.safetensors")).unwrap();
    for (shard, words) in [
        ("gone.safetensors", &["owner/name lacks a file that it names", "gone.safetensors"][..]),
        ("../../../../outside", &["../../../../outside", "model.safetensors.index.json"]),
    ] {
        let index = serde_json::json!({ "weight_map": { "a": shard } }).to_string();
        fs::write(model.join("model.safetensors.index.json"), index).unwrap();
        let hub = Hub::serving(&model);
        hub.generate("owner/name").finish().assert_refused(shard, words);
        assert!(hub.take_downloads().is_empty());
    }
}
