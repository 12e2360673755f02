//! Parsers of option values.

use forerun::{GgufType, LayerStrategy, TokenId, WeightType};

/// Layer groups, or `@` and a file of them.
pub(crate) fn layer_groups(text: &str) -> Result<LayerStrategy, String> {
    let Some(file) = text.strip_prefix('@') else {
        return text.parse().map_err(|error: forerun::LayerGroupsError| error.to_string());
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read the layer groups in {file}: {error}"))?;
    LayerStrategy::from_file_text(&text).map_err(|error| format!("{file}: {error}"))
}

/// `auto` is no type of its own: `None` lets each checkpoint keep its own.
pub(crate) type ChosenType = Option<WeightType>;

/// As in `15043=-2.5`.
pub(crate) fn token_bias(text: &str) -> Result<(TokenId, f32), String> {
    let parts = text
        .split_once('=')
        .and_then(|(token, bias)| Some((token.trim().parse().ok()?, bias.trim().parse().ok()?)));
    parts.ok_or_else(|| {
        "give a token's id and a number, as in 15043=-2.5 (--json prints the ids of tokens)".into()
    })
}

pub(crate) fn weight_type(text: &str) -> Result<ChosenType, String> {
    match text {
        "auto" => Ok(None),
        _ => text.parse().map(Some).map_err(|error: forerun::UnknownWeightType| error.to_string()),
    }
}

pub(crate) fn only_gguf_type(text: &str) -> Result<GgufType, String> {
    text.parse()
}

pub(crate) fn only_weight_type(text: &str) -> Result<WeightType, String> {
    let named = text.parse();
    named.map_err(|_unknown| format!("{text:?} is not one of f32, bf16, f16, int8"))
}
