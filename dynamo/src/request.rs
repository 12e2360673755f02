//! From Dynamo's requests to the engine's.

use crate::error::invalid;
use dynamo_backend_common::{
    DynamoError, GuidedDecodingOptions, PreprocessedRequest, SamplingOptions, StopConditions,
};
use forerun::text::GrammarKind;
use forerun::{Engine, Grammar, Request, SamplingOptions as Sampling, TokenId};
use forerun_server::{Generator, Speculation, Task};
use serde_json::Value;
use std::collections::BTreeMap;

/// The start of annotations that choose how an answer is decoded, as in `forerun:method=pearl`.
const ANNOTATION: &str = "forerun:";
/// The start of the same names in the request's metadata, which HTTP headers such as
/// `x-dynamo-meta-forerun-method` fill in.
const METADATA: &str = "forerun-";

/// Which requests a worker refuses although it could answer them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policy {
    /// Those whose text would change if they moved to another worker: with frequency or presence
    /// penalties.
    pub(crate) refuse_penalties: bool,
}

/// Returns the answer to generate, or `None` if the request leaves no room for a token.
///
/// # Errors
/// If the request asks for something that the engine does not do. The error names the field.
pub(crate) fn task_of(
    generator: &Generator,
    request: &PreprocessedRequest,
    metadata: &BTreeMap<String, String>,
    policy: Policy,
) -> Result<Option<Task>, DynamoError> {
    check_supported(request)?;
    check_penalties(request, policy)?;
    let forerun = generator.forerun();
    let prompt: Vec<TokenId> = request.token_ids.to_vec();
    let vocab_size = forerun.config().vocab_size;
    if let Some(token) = prompt.iter().find(|&&token| token as usize >= vocab_size) {
        return Err(invalid(format!(
            "the prompt has token {token}, but the model has {vocab_size}"
        )));
    }
    let room = forerun.config().max_position_embeddings.checked_sub(prompt.len());
    let limit = request.stop_conditions.max_tokens.map(|most| most as usize);
    // A request can move to this worker when its last token was written, and only its end was lost.
    if limit == Some(0) || room == Some(0) {
        return Ok(None);
    }
    let sampling = &request.sampling_options;
    let stop = &request.stop_conditions;
    let mut own = Request {
        // Prompts beyond the context are an error of the engine.
        max_tokens: limit.unwrap_or_else(|| room.unwrap_or(1)),
        sampling: sampling_of(sampling, generator.default_sampling())?,
        seed: sampling.seed.map(|seed| seed as u64),
        stop: stop.stop.clone().unwrap_or_default(),
        stop_tokens: stop_tokens(stop),
        ignore_eos: ignores_eos(stop)?,
        logprobs: request.output_options.logprobs.map(|count| count as usize),
        grammar: sampling.guided_decoding.as_ref().map(grammar_of).transpose()?.flatten(),
        ..Request::default()
    };
    own.stop.retain(|text| !text.is_empty());
    let speculation = speculation_of(&request.annotations, metadata)?;
    let method = speculation
        .apply(forerun, &mut own)
        .map_err(|error| invalid(format!("{ANNOTATION}{}: {error}", error.option())))?;
    own.validate_for(method).map_err(|error| invalid(error.to_string()))?;
    check_grammar(forerun, &own)?;
    // An answer that moves to another worker continues without the tokens before.
    Ok(Some(Task { prompt, request: own, method, ends_repetition: false }))
}

/// Refuses what the worker would have to ignore.
fn check_supported(request: &PreprocessedRequest) -> Result<(), DynamoError> {
    let sampling = &request.sampling_options;
    let has_media = request.multi_modal_data.as_ref().is_some_and(|media| !media.is_empty());
    for (field, is_set) in [
        ("n", sampling.n.is_some_and(|count| count > 1)),
        ("best_of", sampling.best_of.is_some_and(|count| count > 1)),
        ("use_beam_search", sampling.use_beam_search == Some(true)),
        ("length_penalty", sampling.length_penalty.is_some_and(|penalty| penalty != 1.0)),
        ("prompt_logprobs", request.output_options.prompt_logprobs.is_some()),
        ("max_thinking_tokens", request.stop_conditions.max_thinking_tokens.is_some()),
        ("prompt_embeds", request.prompt_embeds.is_some()),
        ("images, audio or video", has_media),
        ("a prompt that another worker computed", request.prefill_result.is_some()),
    ] {
        if is_set {
            return Err(invalid(format!("{field}: forerun's worker does not support this")));
        }
    }
    Ok(())
}

/// Refuses penalties that count the tokens of the answer, where they would count only those since
/// the answer moved here.
fn check_penalties(request: &PreprocessedRequest, policy: Policy) -> Result<(), DynamoError> {
    let sampling = &request.sampling_options;
    let given = [
        ("frequency_penalty", sampling.frequency_penalty),
        ("presence_penalty", sampling.presence_penalty),
    ];
    let is_set = |penalty: &(&str, Option<f32>)| penalty.1.is_some_and(|value| value != 0.0);
    let Some((field, _)) = given.into_iter().find(is_set) else { return Ok(()) };
    if request.migration_link.is_some() {
        return Err(invalid(format!(
            "{field}: the answer cannot continue on another worker, because the penalty depends on which tokens are \
             the answer's"
        )));
    }
    if policy.refuse_penalties {
        return Err(invalid(format!(
            "{field}: this worker was started with --refuse-penalties, because such an answer cannot continue on \
             another worker; repetition_penalty can"
        )));
    }
    Ok(())
}

fn sampling_of(given: &SamplingOptions, default: Sampling) -> Result<Sampling, DynamoError> {
    let mut sampling = default;
    for (field, place) in [
        (given.temperature, &mut sampling.temperature),
        (given.top_p, &mut sampling.top_p),
        (given.min_p, &mut sampling.min_p),
        (given.presence_penalty, &mut sampling.presence_penalty),
        (given.frequency_penalty, &mut sampling.frequency_penalty),
        (given.repetition_penalty, &mut sampling.repetition_penalty),
    ] {
        *place = field.unwrap_or(*place);
    }
    if let Some(top_k) = given.top_k {
        // −1 keeps all tokens.
        let top_k = if top_k == -1 { Ok(0) } else { usize::try_from(top_k) };
        sampling.top_k = top_k.map_err(|_| invalid("top_k: it must be at least -1"))?;
    }
    Ok(sampling)
}

fn stop_tokens(stop: &StopConditions) -> Vec<TokenId> {
    [&stop.stop_token_ids, &stop.stop_token_ids_visible, &stop.stop_token_ids_hidden]
        .into_iter()
        .flatten()
        .flatten()
        .copied()
        .collect()
}

/// Returns whether the answer continues after an end-of-sequence token. A minimum of tokens is
/// possible only where it is the maximum as well.
fn ignores_eos(stop: &StopConditions) -> Result<bool, DynamoError> {
    let fewest = stop.min_tokens.unwrap_or(0);
    match stop.max_tokens {
        _ if fewest == 0 || stop.ignore_eos == Some(true) => Ok(stop.ignore_eos == Some(true)),
        Some(most) if fewest >= most => Ok(true),
        _ => Err(invalid(
            "min_tokens: forerun's worker does not support this, unless it is as large as max_tokens",
        )),
    }
}

fn grammar_of(guided: &GuidedDecodingOptions) -> Result<Option<Grammar>, DynamoError> {
    if guided.structural_tag.is_some() || guided.whitespace_pattern.is_some() {
        return Err(invalid(
            "structural_tag and whitespace_pattern: forerun's worker does not support these; it does support JSON \
             schemas, regular expressions, choices and grammars",
        ));
    }
    let schema = guided.json.as_ref().map(|schema| match schema {
        Value::String(text) => Grammar::new(GrammarKind::JsonSchema, text),
        schema => Grammar::json_schema(schema),
    });
    let choice = guided.choice.as_deref().filter(|texts| !texts.is_empty()).map(Grammar::choice);
    let regex = guided.regex.as_deref().map(Grammar::regex);
    let grammar = guided.grammar.as_deref().map(Grammar::guess);
    Ok(schema.or(choice).or(regex).or(grammar))
}

fn check_grammar(forerun: &Engine, request: &Request) -> Result<(), DynamoError> {
    match &request.grammar {
        None => Ok(()),
        Some(grammar) => forerun.check_grammar(grammar).map_err(|error| invalid(error.to_string())),
    }
}

/// Returns how the answer is decoded: by annotations, or by the metadata that headers of the
/// request set.
fn speculation_of(
    annotations: &[String],
    metadata: &BTreeMap<String, String>,
) -> Result<Speculation, DynamoError> {
    let mut speculation = Speculation::default();
    let of_metadata = metadata.iter().filter_map(|(name, value)| {
        Some((name.strip_prefix(METADATA)?.replace('-', "_"), value.as_str()))
    });
    let of_annotations = annotations.iter().filter_map(|text| {
        let (name, value) = text.strip_prefix(ANNOTATION)?.split_once('=').unwrap_or((text, ""));
        Some((name.to_owned(), value))
    });
    // Annotations are part of the request, and count more than its headers.
    for (name, value) in of_metadata.chain(of_annotations) {
        match name.as_str() {
            "method" => speculation.method = Some(value.to_owned()),
            "drafter" => speculation.drafter = Some(value.to_owned()),
            "tree" => speculation.tree = Some(value.to_owned()),
            "draft_tokens" => {
                let count = value.parse().map_err(|_| {
                    invalid(format!("{ANNOTATION}draft_tokens: {value:?} is not a number"))
                })?;
                speculation.draft_tokens = Some(count);
            }
            _ => {
                return Err(invalid(format!(
                    "{name:?} is no option of forerun's worker: use {ANNOTATION}method=NAME, {ANNOTATION}drafter=NAME, \
                     {ANNOTATION}draft_tokens=N or {ANNOTATION}tree=TREE"
                )));
            }
        }
    }
    Ok(speculation)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use dynamo_llm::protocols::common::preprocessor::TraceLink;

    fn request(sampling_options: SamplingOptions) -> PreprocessedRequest {
        PreprocessedRequest::builder()
            .model("demo".into())
            .token_ids(vec![1, 2, 3])
            .stop_conditions(StopConditions::default())
            .sampling_options(sampling_options)
            .output_options(Default::default())
            .build()
            .unwrap()
    }

    #[test]
    fn annotations_and_metadata_choose_how_an_answer_is_decoded() {
        let metadata = |name: &str, value: &str| BTreeMap::from([(name.into(), value.into())]);
        let given = speculation_of(
            &["forerun:method=pearl".into(), "other".into()],
            &metadata("forerun-draft-tokens", "3"),
        );
        let given = given.unwrap();
        assert_eq!((given.method.as_deref(), given.draft_tokens), (Some("pearl"), Some(3)));
        let both = ["forerun:method=pearl".to_owned()];
        let both = speculation_of(&both, &metadata("forerun-method", "dsi")).unwrap();
        assert_eq!(both.method.as_deref(), Some("pearl"));
        for wrong in ["forerun:speed=high", "forerun:draft_tokens=many", "forerun:method"] {
            assert!(speculation_of(&[wrong.into()], &BTreeMap::new()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn penalties_are_refused_where_an_answer_would_change() {
        let penalty = || SamplingOptions { presence_penalty: Some(0.5), ..Default::default() };
        let (strict, lenient) = (Policy { refuse_penalties: true }, Policy::default());
        assert!(check_penalties(&request(penalty()), lenient).is_ok());
        assert!(check_penalties(&request(penalty()), strict).is_err());
        let moved = |sampling| {
            let (trace_id, span_id) = ("0".repeat(32), "0".repeat(16));
            let mut request = request(sampling);
            request.migration_link = Some(TraceLink { trace_id, span_id });
            request
        };
        assert!(check_penalties(&moved(penalty()), lenient).is_err());
        let repetition = SamplingOptions { repetition_penalty: Some(1.2), ..Default::default() };
        assert!(check_penalties(&moved(repetition.clone()), strict).is_ok());
        assert!(check_penalties(&request(repetition), strict).is_ok());
    }

    #[test]
    fn a_minimum_of_tokens_must_be_the_maximum() {
        let stop = |min_tokens, max_tokens, ignore_eos| StopConditions {
            min_tokens,
            max_tokens,
            ignore_eos,
            ..Default::default()
        };
        assert!(!ignores_eos(&stop(None, Some(5), None)).unwrap());
        assert!(ignores_eos(&stop(None, None, Some(true))).unwrap());
        assert!(ignores_eos(&stop(Some(5), Some(5), None)).unwrap());
        assert!(ignores_eos(&stop(Some(4), Some(5), None)).is_err());
    }
}
