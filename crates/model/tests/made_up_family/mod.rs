//! A family that does not exist, from its configuration to passes on the counting device.

use crate::{CountingDevice, run};
use forerun_core::SequenceId;
use forerun_formats::{
    Architecture, Attention, Config, Head, Layer, Mlp, QkNorms, Rope, RopeScaling,
};
use forerun_lm::ForwardRequest;
use forerun_model::CachedTransformer;

/// The configuration's options.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Acme {
    width: usize,
    words: usize,
    /// Every second layer is near-sighted: it sees this many positions, and has norms of its heads.
    near: usize,
    /// For each layer, its number of query heads and the width of its MLP.
    layers: Vec<[usize; 2]>,
    tied: bool,
}

impl From<Acme> for Architecture {
    fn from(acme: Acme) -> Self {
        let layer = |(index, &[n_heads, intermediate_size]): (usize, &[usize; 2])| {
            let is_near = index % 2 == 1;
            let attention = Attention {
                window: is_near.then_some(acme.near),
                rope: Some(Rope { theta: 1e4, scaling: RopeScaling::None, dims: 4 }),
                qk_norms: if is_near { QkNorms::Heads } else { QkNorms::None },
                ..Attention::plain(n_heads, 1, 4)
            };
            Layer::plain(attention, Mlp::gated(intermediate_size))
        };
        Self {
            hidden_size: acme.width,
            vocab_size: acme.words,
            context_length: 400,
            layers: acme.layers.iter().enumerate().map(layer).collect(),
            head: if acme.tied { Head::Embedding } else { Head::Own },
            ..Config::plain_llama().architecture()
        }
    }
}

#[test]
fn a_made_up_family_runs_from_its_configuration() {
    let json = r#"{"width": 8, "words": 9, "near": 3, "layers": [[2, 16], [1, 32]], "tied": true}"#;
    let architecture = serde_json::from_str::<Acme>(json).unwrap().into();
    let mut model = CachedTransformer::new(CountingDevice { architecture, logits: vec![] });
    let passes = run(&mut model, &[ForwardRequest::next_token(SequenceId(1), &[7; 5])]);
    // The second layer has two more norms, and sees 1 + 2 + 3 + 3 + 3 positions.
    assert_eq!((passes[0].norms, passes[0].cache_bytes), (5 * (2 + 4) + 1, (15 + 12) * 2 * 4 * 4));
}
