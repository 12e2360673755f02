//! What GPUs do not compute yet. It is refused when a model is loaded, with the piece's name.

use crate::error::GpuLoadError;
use crate::kernel::{MAX_CONVOLUTION, MAX_EXPERTS, MAX_HEAD_DIM, MAX_KEY_DIM, WEIGHT_TYPES};
use forerun_formats::checkpoint::Tensor;
use forerun_formats::{
    Architecture, Attention, CacheType, Experts, Layer, MatrixTypes, Norm, Recurrent, WeightType,
};

/// Checks that GPUs compute everything in a model.
///
/// # Errors
/// [`GpuLoadError::Unsupported`] with the first piece that they do not compute.
pub(crate) fn check(
    model: &Architecture,
    types: &MatrixTypes,
    cache: CacheType,
) -> Result<(), GpuLoadError> {
    let refuse = |is_refused: bool, piece: &str| match is_refused {
        true => Err(GpuLoadError::unsupported(piece)),
        false => Ok(()),
    };
    refuse(is_quantised(cache), &format!("caches in {cache}"))?;
    refuse(model.is_encoder(), "attention to later tokens (an encoder: leave it on cores)")?;
    let has_other_norm = model.norm != Norm::Rms && model.own_input().is_some();
    refuse(has_other_norm, "layer norms of inputs of layers' own")?;
    let mut of_layers = model.layers.iter().enumerate();
    let of_layers = of_layers.find_map(|(index, layer)| unsupported_layer(index, layer));
    let of_matrices =
        || model.matrices().find_map(|tensor| unsupported_matrix_of(model, types, tensor));
    match of_layers.or_else(of_matrices) {
        Some(piece) => Err(GpuLoadError::Unsupported { piece }),
        None => Ok(()),
    }
}

fn is_quantised(cache: CacheType) -> bool {
    matches!(cache, CacheType::Q8 | CacheType::Q4)
}

/// Returns the number of a model's first layers that GPUs compute, and the piece that ends them, if
/// there is one.
pub(crate) fn first_layers(
    model: &Architecture,
    types: &MatrixTypes,
    cache: CacheType,
) -> (usize, Option<String>) {
    if is_quantised(cache) {
        return (0, Some(format!("caches in {cache}")));
    }
    if model.is_encoder() {
        return (0, Some("attention to later tokens (an encoder: leave it on cores)".into()));
    }
    if model.own_input().is_some() {
        return (0, Some("a part of a model whose layers have inputs of their own".into()));
    }
    // Such layers would read a cache on another device.
    let shares_keys =
        |layer: &Layer| layer.attention.as_ref().is_some_and(|it| it.keys_of.is_some());
    if model.layers.iter().any(shares_keys) {
        return (0, Some("a part of a model with keys that layers share".into()));
    }
    let layer_of = |tensor| match tensor {
        Tensor::Layer(layer, _) | Tensor::Expert(layer, ..) => Some(layer),
        _ => None,
    };
    for (index, layer) in model.layers.iter().enumerate() {
        let mut matrices = model.matrices().filter(|tensor| layer_of(*tensor) == Some(index));
        let of_matrices =
            || matrices.find_map(|tensor| unsupported_matrix_of(model, types, tensor));
        if let Some(piece) = unsupported_layer(index, layer).or_else(of_matrices) {
            return (index, Some(piece));
        }
    }
    (model.layers.len(), None)
}

fn unsupported_layer(index: usize, layer: &Layer) -> Option<String> {
    unsupported_piece(layer).map(|piece| format!("{piece} (layer {index})"))
}

fn unsupported_matrix_of(
    model: &Architecture,
    types: &MatrixTypes,
    tensor: Tensor,
) -> Option<String> {
    unsupported_matrix(tensor, types.of(tensor), model.shape(tensor)[1])
}

/// Returns what GPUs do not compute of a matrix of this type with this number of inputs, if they do
/// not.
pub(crate) fn unsupported_matrix(
    tensor: Tensor,
    weight_type: WeightType,
    inputs: usize,
) -> Option<String> {
    if !WEIGHT_TYPES.contains(&weight_type) {
        return Some(format!("weights in {weight_type} ({tensor})"));
    }
    let is_odd = !inputs.is_multiple_of(4);
    is_odd.then(|| format!("a matrix with {inputs} inputs, no multiple of 4 ({tensor})"))
}

fn unsupported_piece(layer: &Layer) -> Option<String> {
    let has_no_mlp = layer.mlp.is_none() && layer.experts.is_none() && !layer.has_only_keys();
    let pieces = [(has_no_mlp, "layers without an MLP")];
    let of_layer = pieces.into_iter().find(|(is_there, _)| *is_there);
    let of_layer = of_layer.map(|(_, piece)| piece.to_owned());
    let attention = || layer.attention.as_ref().and_then(unsupported_attention);
    let experts = || layer.experts.as_ref().and_then(unsupported_experts);
    let recurrent = || layer.recurrent.as_ref().and_then(unsupported_mixer);
    of_layer.or_else(attention).or_else(recurrent).or_else(experts)
}

fn unsupported_mixer(mixer: &Recurrent) -> Option<String> {
    let (kernel, key_dim) = (mixer.kernel, mixer.key_dim);
    let convolution = (kernel > MAX_CONVOLUTION)
        .then(|| format!("convolutions over {kernel} positions, more than {MAX_CONVOLUTION}"));
    let stateless = (mixer.state_bytes() == 0).then(|| "mixers without a state".to_owned());
    let keys = || format!("key heads of {key_dim} numbers in recurrent mixers");
    convolution.or(stateless).or_else(|| (key_dim > MAX_KEY_DIM).then(keys))
}

fn unsupported_experts(experts: &Experts) -> Option<String> {
    let count = experts.n_experts;
    (count > MAX_EXPERTS).then(|| format!("{count} experts, more than {MAX_EXPERTS}"))
}

fn unsupported_attention(attention: &Attention) -> Option<String> {
    let pieces = [
        (attention.gate && attention.latent.is_some(), "gates of compressed values"),
        (
            attention.value_norm && attention.qkv_limit.is_some(),
            "limits of values before their norms",
        ),
    ];
    let piece = pieces.into_iter().find(|(is_there, _)| *is_there);
    let too_wide = attention.head_dim > MAX_HEAD_DIM || !attention.head_dim.is_multiple_of(2);
    let too_wide =
        too_wide.then(|| format!("heads of {} numbers in attention", attention.head_dim));
    piece.map(|(_, piece)| piece.to_owned()).or(too_wide)
}
