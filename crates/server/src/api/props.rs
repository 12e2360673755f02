//! `/props`: what this server can do with its default or first model, for clients that offer a
//! choice.

use super::state::State;
use crate::api::error::ApiError;
use crate::generation::reason;
use axum::{Json, extract};
use forerun::Method;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn props(
    extract::State(state): extract::State<Arc<State>>,
) -> Result<Json<Value>, ApiError> {
    let model = state.lend(Some(state.models.first())).await?;
    let forerun = model.generator.forerun();
    let plan = forerun.plan();
    let methods = Method::all().map(|method| {
        let unavailable = forerun.check_method(method).err();
        json!({
            "name": method.name(),
            "help": method.help(),
            "available": unavailable.is_none(),
            "reason": unavailable.as_ref().map(reason),
        })
    });
    let sampling = model.generator.chat_sampling();
    Ok(Json(json!({
        "model": model.name,
        "context_length": forerun.config().max_position_embeddings,
        "parallel": state.options.parallel,
        "method": plan.method().name(),
        "methods": methods.collect::<Vec<_>>(),
        "drafter": plan.drafter().to_string(),
        "devices": plan.workers().into_iter().map(|worker| worker.name).collect::<Vec<_>>(),
        "default_sampling": {
            "temperature": in_decimals(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": in_decimals(sampling.top_p),
            "min_p": in_decimals(sampling.min_p),
            "repetition_penalty": in_decimals(sampling.repetition_penalty),
        },
    })))
}

/// Returns the number that people write for this one: 0.7, not 0.699999988.
fn in_decimals(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
