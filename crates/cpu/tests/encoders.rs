//! Encoders: every row of a text reads all others, so a text is one pass. Its hidden states have the
//! bits of the reference, alone and with other texts, also with texts that begin alike.

use crate::device::team;
use forerun_core::{FeatureRows, SequenceId, TokenId, TokenTree};
use forerun_cpu::{Isa, Transformer, Weights};
use forerun_formats::checkpoint::random::RandomTensors;
use forerun_formats::{Config, FeatureSource, WeightType};
use forerun_lm::{BatchEntry, ForwardRequest, LanguageModel, Progress};
use forerun_model::CachedTransformer;
use forerun_reference::{Arithmetic, ReferenceDevice, ReferenceModel};
use forerun_suite::Run;
use std::path::Path;
use std::sync::Arc;

/// Computes the hidden states of texts in one batch.
fn hidden(model: &mut impl LanguageModel, texts: &[Vec<TokenId>]) -> Vec<FeatureRows> {
    let none = TokenTree::new();
    let mut progress: Vec<Progress> = texts.iter().map(|_| Progress::default()).collect();
    while progress.iter().any(|progress| progress.result.is_none()) {
        let entries = texts.iter().zip(&mut progress).enumerate();
        let batch = entries.map(|(index, (tokens, progress))| {
            let request = ForwardRequest::new(SequenceId(index as u64), tokens, &none);
            BatchEntry { request: ForwardRequest { features_from: Some(0), ..request }, progress }
        });
        model.forward(&mut batch.collect::<Vec<_>>());
    }
    progress.into_iter().map(|done| done.result.unwrap().unwrap().features.unwrap()).collect()
}

#[test]
fn texts_have_the_bits_of_the_reference_alone_and_together() {
    let options = r#"{
        "model_type": "bert", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3,
        "num_attention_heads": 4, "vocab_size": 250, "max_position_embeddings": 320
    }"#;
    let config = Config::parse(options, Path::new("config.json")).unwrap();
    let architecture = config.architecture();
    assert!(architecture.is_encoder());
    let tensors = RandomTensors::new(&architecture, 5);
    let text = |len: u32| -> Vec<TokenId> { (0..len).map(|index| index * 31 % 250).collect() };
    let mut texts = vec![text(300), text(1), text(70), text(100), text(310), text(100)];
    texts[5][99] = 7;
    for (weight_type, threads) in [(WeightType::F32, 2), (WeightType::INT8, 1)] {
        let run = Run { variant: Isa::available()[0], threads };
        let weights =
            Weights::load_architecture(architecture.clone(), &tensors, None, weight_type.into());
        let transformer = Transformer::new(Arc::new(weights.unwrap()), team(run));
        let mut model =
            CachedTransformer::new(transformer.with_features(FeatureSource::LastHidden));
        let together = hidden(&mut model, &texts);
        for (text, together) in texts.iter().zip(&together) {
            assert_eq!(together.len(), text.len());
            let alone = &hidden(&mut model, std::slice::from_ref(text))[0];
            assert_eq!(alone, together, "{} tokens in {weight_type}", text.len());
        }
        // The last token changes all rows.
        assert_ne!(together[3].row(0), together[5].row(0));
        let arithmetic = Arithmetic::cpu(weight_type, run.variant);
        let slow = ReferenceModel::load_with(architecture.clone(), &tensors, arithmetic, None);
        let slow = ReferenceDevice::new(Arc::new(slow.unwrap()));
        let mut slow = CachedTransformer::new(slow.with_features(FeatureSource::LastHidden));
        let few = &texts[1..4];
        assert_eq!(hidden(&mut slow, few), together[1..4], "{weight_type}");
    }
}
