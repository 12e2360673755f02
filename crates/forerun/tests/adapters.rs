//! Adapters compared with PEFT (`scripts/goldens/make_adapters.py`): logits and greedy tokens.

use crate::families::{assert_rows, checkpoint, folder as families, goldens_of};
use forerun::checkpoint::{Checkpoint, NamedAdapter};
use forerun::cpu::{Team, Weights};
use forerun::{Engine, Loader, Options, Plan, Request, TokenId, WeightType};
use forerun_core::{AdapterId, SequenceId, TokenTree};
use forerun_cpu::{AdapterWeights, Isa, Transformer};
use forerun_formats::Adapter;
use forerun_formats::checkpoint::gguf::write_gguf;
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The models of the adapters.
const ADAPTERS: [&str; 6] = ["glm", "gpt2", "llama3", "phi3", "qwen3", "qwen3-next"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/adapters")
}

fn assert_adapter(family: &str, base: &Checkpoint, path: &Path) {
    let (config, architecture) = (base.config(), base.architecture());
    let adapter = Adapter::open(path, config, architecture).unwrap();
    let adapter = Arc::new(AdapterWeights::pack(&adapter, architecture));
    let weights = Arc::new(Weights::load_as(base, WeightType::F32).unwrap());
    for isa in Isa::available() {
        let team = Arc::new(Team::unpinned(2).unwrap().with_isa(isa));
        let model = Transformer::new(Arc::clone(&weights), team);
        let mut model = CachedTransformer::new(model.with_adapters(vec![Arc::clone(&adapter)]));
        for (number, golden) in (0..).zip(goldens_of(&folder().join(family))) {
            let tree = TokenTree::chain(&golden.generated[..199]);
            let request = ForwardRequest {
                adapter: Some(AdapterId(0)),
                ..ForwardRequest::new(SequenceId(number), &golden.prompt, &tree)
            };
            assert_rows(family, &golden, model.logits(&request).unwrap().rows());
        }
    }
}

#[test]
fn adapters_of_peft_give_its_logits() {
    for family in ADAPTERS {
        assert_adapter(family, &checkpoint(family), &folder().join(family));
    }
}

/// The rows of queries and keys have another order in GGUF files, those of the model and those of
/// the adapter.
#[test]
fn formats_of_models_and_adapters_mix() {
    let temporary = tempfile::tempdir().unwrap();
    let file = temporary.path().join("model.gguf");
    write_gguf(&checkpoint("llama3"), &file, WeightType::F32, &[]).unwrap();
    let gguf = Checkpoint::open(&file).unwrap();
    let adapter = folder().join("llama3");
    assert_adapter("llama3", &gguf, &adapter);
    assert_adapter("llama3", &gguf, &adapter.join("adapter.gguf"));
    assert_adapter("llama3", &checkpoint("llama3"), &adapter.join("adapter.gguf"));
}

fn answer(
    engine: &Engine,
    prompt: &[TokenId],
    adapter: Option<&str>,
) -> Result<Vec<TokenId>, String> {
    let adapter = adapter.map(str::to_owned);
    let request = Request { max_tokens: 200, ignore_eos: true, adapter, ..Request::default() };
    let go_on = |_: &str| ControlFlow::Continue(());
    let answer = engine.generate_tokens(prompt.to_vec(), &request, go_on);
    answer.map(|answer| answer.tokens).map_err(|error| error.to_string())
}

#[test]
fn requests_choose_adapters() {
    for family in ADAPTERS {
        let adapters = vec![NamedAdapter { name: "one".into(), path: folder().join(family) }];
        let weight_type = Some(WeightType::F32.into());
        let options = Options { adapters, weight_type, ..Options::new(families().join(family)) };
        let memory = |adapters: &[NamedAdapter]| {
            let options = Options { adapters: adapters.to_vec(), ..options.clone() };
            Engine::most_memory(&Plan::new(options).unwrap(), &mut Loader::new()).unwrap()
        };
        assert!(memory(&options.adapters) > memory(&[]), "{family}");
        let engine = Engine::open(options).unwrap();
        for (name, goldens) in [(None, families()), (Some("one"), folder())] {
            for golden in goldens_of(&goldens.join(family)) {
                let tokens = answer(&engine, &golden.prompt, name).unwrap();
                assert_eq!(tokens, golden.generated, "{family}, {name:?}");
            }
        }
        let unknown = answer(&engine, &[1], Some("two")).unwrap_err();
        assert_eq!(unknown, "`adapter` is \"two\", but it must be one of one");
    }
}

#[test]
fn what_adapters_cannot_do_is_refused_with_a_way_out() {
    let open = |family: &str, adapters: &[&str]| {
        let adapters = adapters.iter().map(|text| text.parse().unwrap()).collect();
        Engine::open(Options { adapters, ..Options::new(families().join(family)) })
    };
    let refused =
        |family: &str, adapters: &[&str]| open(family, adapters).err().unwrap().to_string();
    let path = folder().join("llama3").display().to_string();
    let mixture = refused("mixtral", &[&path]);
    assert!(mixture.contains("base_model.model."), "{mixture}");
    assert!(refused("llama3", &["none=nowhere"]).contains("nowhere"));
    let twice = refused("llama3", &[&path, &path]);
    assert!(twice.contains("\"llama3\"") && twice.contains("NAME="), "{twice}");
    let options = Options {
        adapters: vec![path.parse().unwrap()],
        placement: Some("target=rank:0".parse().unwrap()),
        ..Options::new("model")
    };
    let ranks = Plan::new(options).unwrap_err().to_string();
    assert!(ranks.contains("target=rank:0") && ranks.contains("merge the adapter"), "{ranks}");
    let plain = open("llama3", &[]).unwrap();
    let error = answer(&plain, &[1], Some("one")).unwrap_err();
    assert!(error.contains("set `adapters`"), "{error}");
}
