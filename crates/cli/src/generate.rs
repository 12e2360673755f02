//! `forerun generate`: continues a prompt and prints one line of statistics.

use crate::arguments::{AnswerArguments, EngineArguments, GenerateArguments, StructureArguments};
use crate::export::ensure_not_part_of;
use crate::interrupts::{cancel_on_interrupt, interrupted};
use crate::note::{detail, printable};
use crate::ranks::Member;
use crate::shown_drafts::{ShownDrafts, colours};
use crate::{note, progress, text_file};
use anyhow::{Context, anyhow, bail};
use forerun::checkpoint::{EmbeddedModel, SuggestedSampling};
use forerun::cpu::Isa;
use forerun::text::{GrammarKind, Tokenizer};
use forerun::trace::Trace;
use forerun::{
    Answer, AnswerEvent, AnswerStream, Canceller, ChatTemplate, DrafterOptions, Engine, Finish,
    ForerunError, Grammar, Lookup, MethodOptions, ModelSource, Options, Plan, PlanError, Request,
    RequestError, SamplingOptions, TokenId, TokenLogprob, Verification, VerificationChoice,
};
use forerun_output::OutputFile;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

/// Context of errors of standard output.
pub(crate) const OUTPUT_FAILED: &str = "cannot write to standard output";

/// Note that the demonstration pair is used.
pub(crate) const NO_MODEL: &str =
    "no --model given: using the built-in demonstration pair, small models that write stories";

/// Note that the demonstration pair is used with padding.
pub(crate) const NO_MODEL_SO_PADDED: &str = "no --model given: using the built-in demonstration pair, \
     padded to 133M and 5M parameters with weights that change no token (--model demo: without them)";

/// The target of the demonstration pair.
pub static DEMONSTRATION_TARGET: EmbeddedModel =
    EmbeddedModel { name: "demonstration-target", files: forerun_models::TARGET, padding: 0 };

/// The drafter of the demonstration pair.
pub static DEMONSTRATION_DRAFTER: EmbeddedModel =
    EmbeddedModel { name: "demonstration-drafter", files: forerun_models::DRAFTER, padding: 0 };

/// Returns the demonstration pair: target and drafter.
pub(crate) fn demonstration_pair() -> [EmbeddedModel; 2] {
    [DEMONSTRATION_TARGET, DEMONSTRATION_DRAFTER]
}

/// Returns the same pair, padded to 133 and 5 million parameters. The target itself fits in a
/// processor's cache, where drafts gain little.
pub(crate) fn padded_pair() -> [EmbeddedModel; 2] {
    let padded = |model, name, padding| EmbeddedModel { name, padding, ..model };
    [
        padded(DEMONSTRATION_TARGET, "padded-demonstration-target", 20_480),
        padded(DEMONSTRATION_DRAFTER, "padded-demonstration-drafter", 8_192),
    ]
}

/// Note that drafts are translated between vocabularies.
pub(crate) const TRANSLATED: &str = "the drafter's vocabulary differs from the target's: drafts \
                                     are translated through their text";

pub(crate) fn run(mut arguments: GenerateArguments) -> anyhow::Result<ExitCode> {
    let is_unnamed = use_demonstration(&mut arguments.answers.engine, padded_pair())?;
    let Some(member) = Member::join(&mut arguments.answers.engine)? else {
        return Ok(ExitCode::SUCCESS);
    };
    // All errors that do not need a model are found before a model is loaded.
    let mut request = request(&arguments.answers)?;
    request.logprobs = arguments.logprobs;
    request.validate()?;
    if let Some(trace) = &arguments.trace {
        let EngineArguments { model, draft_model, .. } = &arguments.answers.engine;
        ensure_not_part_of(trace, model.get().into_iter().chain(draft_model))?;
    }
    let trace = arguments.trace.as_deref().map(TraceFile::create).transpose()?;
    let prompt_text = prompt(&arguments)?;
    if prompt_text.is_empty() {
        return Err(ForerunError::EmptyPrompt.into());
    }
    if is_unnamed {
        note(NO_MODEL_SO_PADDED);
    }
    let plan = Plan::new(options(&arguments.answers.engine)?)?;
    request.validate_for(plan.method())?;
    // An interrupt during loading ends the process; the next run resumes a download.
    let mut loader = progress::loader(arguments.answers.engine.offline, !arguments.json);
    let (engine, clocks) = member.open(&plan, &mut loader)?;
    drop(loader);
    if engine.translates_drafts() {
        note(TRANSLATED);
    }
    detail_plan(&engine);
    request = suggested_sampling(request, &arguments.answers, &engine)?;
    if !arguments.json && is_raw_text_for_a_chat(&engine, &prompt_text) {
        note("the model has a chat template, but this continues raw text: forerun run answers");
    }
    let canceller = Canceller::new();
    cancel_on_interrupt(&canceller)?;
    let mut output = Output::new(arguments.json);
    let mut drafts = ShownDrafts::on_standard_output(engine.tokenizer(), arguments.show_drafts);
    let prompt = engine.encode_prompt(&prompt_text)?;
    if !arguments.json && colours() {
        show_prompt(&prompt_text);
    }
    let method = engine.plan().method();
    let stream = engine.stream_tokens(prompt.clone(), &request, method, &canceller)?;
    let answer = print(stream, &mut drafts, &mut output)?;
    output.check()?;
    let was_interrupted = canceller.is_cancelled() && answer.finish == Finish::Stopped;
    report(&engine, &answer, arguments.json, was_interrupted).context(OUTPUT_FAILED)?;
    if arguments.show_drafts {
        note(drafts.summary(&answer));
    }
    if !arguments.json && !was_interrupted && std::io::stderr().is_terminal() {
        let text = [&prompt[..], &answer.tokens].concat();
        if let Some(comparison) = compared_with_plain(&engine, text, &answer, &canceller)? {
            note(comparison);
        }
    }
    // The answer comes first, so that it is not lost if the trace cannot be written.
    if let Some(trace) = trace {
        trace.write(&answer.trace)?;
        clocks.report();
    }
    Ok(match was_interrupted {
        true => ExitCode::from(interrupted()),
        false => exit_code(&request, &answer, false),
    })
}

/// Returns whether the model has a chat template of its own, and the prompt has none of the special
/// tokens that templates write.
fn is_raw_text_for_a_chat(engine: &Engine, prompt: &str) -> bool {
    let tokenizer = engine.tokenizer();
    let is_embedded = matches!(engine.plan().model(), ModelSource::Embedded(_));
    let template = || ChatTemplate::default_source(tokenizer.file()).ok().flatten();
    let has_special = || tokenizer.special_tokens().iter().any(|text| prompt.contains(&**text));
    !is_embedded && !has_special() && template().is_some()
}

/// Exit status after an answer that was cut before its structure was complete.
const CUT: u8 = 3;

/// Returns the exit status after an answer that was not interrupted. `was_ended`: whether the
/// command has ended it.
pub(crate) fn exit_code(request: &Request, answer: &Answer, was_ended: bool) -> ExitCode {
    let is_cut = was_ended || matches!(answer.finish, Finish::MaxTokens | Finish::Context);
    if request.grammar.is_none() || !is_cut {
        return ExitCode::SUCCESS;
    }
    let tokens = answer.tokens.len();
    note::error(format_args!(
        "the answer was cut after {tokens} tokens, before its structure was complete"
    ));
    ExitCode::from(CUT)
}

/// Notes what runs where, if the command is verbose.
pub(crate) fn detail_plan(engine: &Engine) {
    let plan = engine.plan();
    let isa = Isa::from_environment().map_or_else(|_| "unknown".into(), |isa| isa.to_string());
    detail(format_args!(
        "method {}, drafter {}{}, placement {}, instruction set {isa}{}",
        plan.method(),
        plan.drafter(),
        lookup_name(plan).unwrap_or_default(),
        plan.placement(),
        engine.target_arithmetic().map(|it| format!(", {it}")).unwrap_or_default(),
    ));
}

/// The longest prompt that is printed, in bytes.
const SHOWN_PROMPT_BYTES: usize = 1000;

/// Prints a prompt in grey, before its continuation. A long one would hide the answer.
fn show_prompt(prompt: &str) {
    if prompt.len() <= SHOWN_PROMPT_BYTES {
        // The answer says whether standard output works.
        let _ = write!(std::io::stdout(), "\x1b[90m{}\x1b[0m", printable(prompt));
    }
}

/// Prints an answer while it is generated.
fn print(
    mut stream: AnswerStream<'_>,
    drafts: &mut ShownDrafts<'_>,
    output: &mut Output,
) -> anyhow::Result<Box<Answer>> {
    while let Some(event) = stream.next() {
        let ended = match event? {
            AnswerEvent::Token(token) => {
                drafts.push(token);
                continue;
            }
            AnswerEvent::Text(text) => output.write(&drafts.text(&text)).is_break(),
            AnswerEvent::Finished(answer) => {
                // The answer is complete, whether or not its end can be printed.
                let _ = output.write(&drafts.end());
                return Ok(answer);
            }
        };
        if ended {
            stream.stop();
        }
    }
    bail!("the answer ended without a result")
}

/// The number of tokens of plain decoding that an answer's speed is compared with.
const PLAIN_TOKENS: usize = 32;

/// The fewest tokens from rounds with drafts in an answer that is compared.
const FEWEST_DRAFTED_TOKENS: usize = 64;

/// Compares an answer's speed with that of plain decoding after the same tokens, which is measured.
/// Returns `None` if too few tokens are compared, or if drafter and target have cores of their own,
/// because plain decoding would use all cores.
fn compared_with_plain(
    engine: &Engine,
    text: Vec<TokenId>,
    answer: &Answer,
    canceller: &Canceller,
) -> anyhow::Result<Option<String>> {
    let [first, .., last] = &answer.commits[..] else { return Ok(None) };
    let after_first = answer.tokens.len() - first.tokens;
    let rounds = answer.verifications.iter();
    let with_drafts = rounds.filter(|round| round.accepted > 0 || !round.rejected.is_empty());
    let drafted: usize = with_drafts.map(|round| round.committed).sum();
    if drafted < FEWEST_DRAFTED_TOKENS || !engine.plan().placement().is_shared() {
        return Ok(None);
    }
    let plain_ns = engine.plain_token_ns(text, PLAIN_TOKENS, canceller)?;
    let Some(plain_ns) = plain_ns else { return Ok(None) };
    let own_ns = (last.at_ns - first.at_ns) as f64 / after_first as f64;
    let drafted: u64 = answer.statistics.accepted.iter().sum();
    Ok(Some(format!(
        "{:.1} × plain decoding: {drafted} of {} tokens came from drafts",
        plain_ns / own_ns,
        answer.tokens.len()
    )))
}

/// Says why drafts were made or not, if the user wants details.
pub(crate) fn detail_reasons(answer: &Answer) {
    for reason in answer.trace.reasons() {
        detail(format_args!("{} steps: {}", reason.steps, reason.words));
    }
}

/// Maximum number of tokens to generate.
const DEFAULT_MAX_TOKENS: usize = 200;

/// Returns whether the checkpoint's suggested sampling is used: in a chat, or as an option says.
fn takes_suggested_sampling(arguments: &AnswerArguments) -> bool {
    arguments.is_chat || arguments.suggested_sampling
}

/// Applies the checkpoint's suggested sampling to a valid request, if it is used, or else the
/// moderate one of chats. Options come first. A chat says what it uses.
pub(crate) fn suggested_sampling(
    request: Request,
    arguments: &AnswerArguments,
    engine: &Engine,
) -> anyhow::Result<Request> {
    let config = engine.config();
    let base = match config.suggested_sampling {
        _ if !takes_suggested_sampling(arguments) => return Ok(request),
        _ if arguments.is_chat => config.chat_sampling(),
        Some(suggested) => suggested,
        None => {
            if arguments.suggested_sampling {
                note("the checkpoint suggests no sampling options: decoding stays greedy");
            }
            return Ok(request);
        }
    };
    let AnswerArguments { temperature, top_k, top_p, min_p, repetition_penalty, .. } = arguments;
    let sampling = SuggestedSampling {
        temperature: temperature.unwrap_or(base.temperature),
        top_k: top_k.unwrap_or(base.top_k),
        top_p: top_p.unwrap_or(base.top_p),
        min_p: min_p.unwrap_or(base.min_p),
        repetition_penalty: repetition_penalty.unwrap_or(base.repetition_penalty),
    };
    if arguments.is_chat {
        let source = match config.suggested_sampling {
            _ if sampling != base => "",
            Some(_) => ", as the checkpoint suggests",
            None => ", the default",
        };
        note(format_args!("sampling: {sampling}{source}"));
    }
    let request = request.sampled_as(sampling);
    // The flags are valid, so the option is one of the file, which is not shown as a flag.
    let of_file = |error: RequestError| anyhow!(error.to_string().replace('`', "\""));
    request.validate().map_err(of_file).context(
        "the sampling suggested by the checkpoint's generation_config.json is invalid: leave out \
         --suggested-sampling, and set this option",
    )?;
    Ok(request)
}

pub(crate) fn request(arguments: &AnswerArguments) -> anyhow::Result<Request> {
    let is_greedy = match arguments.temperature {
        Some(temperature) => temperature == 0.0,
        None => !takes_suggested_sampling(arguments),
    };
    if is_greedy && arguments.verify != VerificationChoice::Auto {
        bail!(
            "--verify has no effect without --temperature above 0: set that, or leave --verify out"
        );
    }
    let mut logit_bias = BTreeMap::new();
    for &(token, bias) in &arguments.logit_bias {
        if logit_bias.insert(token, bias).is_some() {
            bail!("--logit-bias names token {token} twice: give each token only one bias");
        }
    }
    let mut sampling = SamplingOptions {
        temperature: arguments.temperature.unwrap_or(0.0),
        top_k: arguments.top_k.unwrap_or(0),
        top_p: arguments.top_p.unwrap_or(1.0),
        min_p: arguments.min_p.unwrap_or(0.0),
        repetition_penalty: arguments.repetition_penalty.unwrap_or(1.0),
        frequency_penalty: arguments.frequency_penalty,
        presence_penalty: arguments.presence_penalty,
        logit_bias,
        ..SamplingOptions::default()
    };
    arguments.samplers.apply(&mut sampling);
    Ok(Request {
        sampling,
        max_tokens: arguments.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
        seed: arguments.seed,
        verification: arguments.verify,
        stop: arguments.stop.clone(),
        stop_tokens: Vec::new(),
        ignore_eos: arguments.ignore_eos,
        special_tokens: false,
        logprobs: None,
        prompt_logprobs: None,
        // The engine's own, which has the same option.
        draft_tokens: None,
        tree: forerun::Tree::None,
        grammar: grammar(&arguments.structure)?,
        adapter: match &arguments.engine.lora[..] {
            [] => None,
            [only] => Some(only.name.clone()),
            _ => bail!("--lora was given several times: give one adapter (serve takes several)"),
        },
    })
}

/// Returns the grammar that the answer must follow, from its file or the command line.
fn grammar(arguments: &StructureArguments) -> anyhow::Result<Option<Grammar>> {
    let read = |file: &Path, flag| {
        let text = text_file::read(file);
        text.with_context(|| format!("cannot read the {flag} file {}", file.display()))
    };
    if arguments.json_object {
        return Ok(Some(Grammar::json_object()));
    }
    if let Some(regex) = &arguments.regex {
        return Ok(Some(Grammar::regex(regex)));
    }
    if let Some(schema) = &arguments.json_schema {
        let is_json = schema.trim_start().starts_with('{');
        let text = if is_json { schema.clone() } else { read(schema.as_ref(), "--json-schema")? };
        return Ok(Some(Grammar::new(GrammarKind::JsonSchema, text)));
    }
    let Some(file) = &arguments.grammar else { return Ok(None) };
    let text = read(file, "--grammar")?;
    Ok(Some(match file.extension().and_then(OsStr::to_str) {
        Some("gbnf") => Grammar::gbnf(text),
        Some("lark") => Grammar::lark(text),
        _ => Grammar::guess(text),
    }))
}

/// Uses the demonstration pair if no model is given.
pub(crate) fn demonstration(arguments: &mut EngineArguments) -> anyhow::Result<()> {
    if use_demonstration(arguments, demonstration_pair())? {
        note(NO_MODEL);
    }
    Ok(())
}

/// Uses a `pair` of demonstration models if no model is given, and returns whether it did. The
/// demonstration's target by its name gets its drafter, unless another one is given.
pub(crate) fn use_demonstration(
    arguments: &mut EngineArguments,
    pair: [EmbeddedModel; 2],
) -> anyhow::Result<bool> {
    let (is_unnamed, [target, drafter]) = match arguments.model.get() {
        None if arguments.draft_model.is_some() => {
            bail!("--draft-model was given without --model: add --model with the target")
        }
        None => (true, pair),
        Some(ModelSource::Embedded(_)) => (false, demonstration_pair()),
        Some(_) => return Ok(false),
    };
    arguments.model.set(target.into());
    if arguments.draft_model.is_none()
        && arguments.drafter.is_none_or(forerun::DrafterKind::has_model)
    {
        arguments.draft_model = Some(drafter.into());
    }
    Ok(is_unnamed)
}

pub(crate) fn options(arguments: &EngineArguments) -> Result<Options, PlanError> {
    let EngineArguments { method, tree, lookup, pearl, easyspec, .. } = arguments;
    Ok(Options {
        model: arguments.model.get().cloned().unwrap_or_default(),
        adapters: arguments.lora.clone(),
        draft_model: arguments.draft_model.clone(),
        method: MethodOptions::of(*method, tree.clone(), *lookup, *pearl)?,
        drafter: DrafterOptions::of(
            *method,
            arguments.drafter,
            easyspec.layers(),
            easyspec.calibration,
        )?,
        additional_drafters: arguments.also_draft.clone(),
        draft_tokens: arguments.draft_tokens,
        weight_type: arguments.weights.dtype,
        cache_type: arguments.cache.kv_type,
        cache_bytes: arguments.cache_bytes,
        cache_dir: arguments.cache_dir.clone(),
        cache_dir_size: arguments.cache_dir_size,
        // llama.cpp writes 0 for the model's own.
        context_length: arguments.context_length.filter(|&tokens| tokens > 0),
        threads: arguments.threads,
        placement: arguments.placement.clone(),
        gpu_layers: arguments.gpu_layers,
        cpu_moe: if arguments.cpu_moe { Some(usize::MAX) } else { arguments.n_cpu_moe },
        pin: arguments.pin,
    })
}

/// Reads the prompt from the arguments, a file or standard input.
fn prompt(arguments: &GenerateArguments) -> anyhow::Result<String> {
    if let Some(prompt) = &arguments.prompt {
        return Ok(prompt.clone());
    }
    let mut text = match arguments.prompt_file.as_deref() {
        Some(file) if file != Path::new("-") => text_file::read(file)
            .with_context(|| format!("cannot read the prompt file {}", file.display()))?,
        None if std::io::stdin().is_terminal() => {
            bail!(
                "no prompt: give --prompt TEXT or --prompt-file FILE, or pipe a text to standard \
                 input"
            )
        }
        _ => {
            text_file::read(Path::new("-")).context("cannot read the prompt from standard input")?
        }
    };
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// Standard output, until it is closed or fails.
pub(crate) struct Output {
    /// Whether streamed text is dropped, because another output is printed at the end.
    silent: bool,
    /// The error after which nothing more can be written.
    broken: Option<std::io::Error>,
}

impl Output {
    pub(crate) fn new(silent: bool) -> Self {
        Self { silent, broken: None }
    }

    pub(crate) fn write(&mut self, text: &str) -> ControlFlow<()> {
        if self.silent {
            return ControlFlow::Continue(());
        }
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.broken = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// Fails if a text could not be written.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        self.broken.take().map_or(Ok(()), |error| Err(error).context(OUTPUT_FAILED))
    }
}

/// The file of a timeline. It is created before the work, which would be lost if it failed.
pub(crate) struct TraceFile<'a> {
    path: &'a Path,
    file: OutputFile,
}

impl<'a> TraceFile<'a> {
    pub(crate) fn create(path: &'a Path) -> anyhow::Result<Self> {
        let file = OutputFile::create(path).with_context(|| cannot_write(path))?;
        Ok(Self { path, file })
    }

    /// Writes a timeline in the format of the file's extension: text for `.txt`, a picture for
    /// `.svg`, otherwise JSON for Perfetto. Text and picture have one lane per device.
    pub(crate) fn write(mut self, trace: &Trace) -> anyhow::Result<()> {
        let text = match self.path.extension().and_then(OsStr::to_str) {
            Some("txt") => timeline(&trace.with_devices_as_lanes()),
            Some("svg") => forerun_draw::timeline(&trace.with_devices_as_lanes(), "Timeline"),
            _ => trace.to_perfetto().to_string(),
        };
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.finish());
        written.with_context(|| cannot_write(self.path))
    }
}

/// Returns the context of errors of an output file.
pub(crate) fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Renders a timeline as text of at most a hundred columns.
pub(crate) fn timeline(trace: &Trace) -> String {
    trace.to_ascii(trace.occupancy().wall_ns.div_ceil(100))
}

/// Prints the statistics: one line after the text, or one JSON object.
fn report(
    engine: &Engine,
    answer: &Answer,
    as_json: bool,
    interrupted: bool,
) -> std::io::Result<()> {
    let plan = engine.plan();
    let mut out = std::io::stdout().lock();
    if as_json {
        let mut report = json_report(plan, answer, finish_reason(answer, interrupted));
        if let Some(logprobs) = &answer.logprobs {
            report["logprobs"] = json_logprobs(engine.tokenizer(), logprobs);
            // The token that ended the answer has no text.
            if let (Finish::Eos, Some(end)) = (answer.finish, logprobs.len().checked_sub(1)) {
                report["logprobs"][end]["text"] = "".into();
            }
        }
        writeln!(out, "{report}")?;
    } else {
        writeln!(out)?;
        out.flush()?;
        if answer.finish == Finish::Context {
            let size = engine.config().max_position_embeddings;
            note(format_args!(
                "the answer ended because the model's context of {size} tokens is full"
            ));
        }
        if let Some(text) =
            engine.note_on_drafter_context(answer.prompt_tokens + answer.tokens.len())
        {
            note(text);
        }
        let additional = plan.additional_drafters().iter().map(|drafter| format!(" + {drafter}"));
        let additional = additional.chain(lookup_name(plan));
        let drafters = plan.drafter().to_string() + &additional.collect::<String>();
        let decoding = match plan.method().drafts() {
            true => format!("{}, {drafters}", plan.method()),
            false => "plain decoding".to_owned(),
        };
        detail_reasons(answer);
        note(format_args!("{decoding}: {}", answer.summary()));
    }
    Ok(())
}

/// Returns the lookup as a further drafter, if there is one.
fn lookup_name(plan: &Plan) -> Option<String> {
    let lookup = Some(plan.lookup()).filter(|&lookup| lookup != Lookup::None)?;
    Some(format!(" + {lookup}"))
}

/// Returns the word for why an answer ended.
pub(crate) fn finish_reason(answer: &Answer, interrupted: bool) -> &'static str {
    match answer.finish {
        Finish::Eos => "eos",
        Finish::MaxTokens => "max_tokens",
        Finish::Context => "context",
        Finish::Stopped if interrupted => "interrupted",
        Finish::Stopped => "stop",
    }
}

pub(crate) fn json_report(plan: &Plan, answer: &Answer, finish_reason: &str) -> serde_json::Value {
    let statistics = &answer.statistics;
    let reasons = answer.trace.reasons();
    let decisions = reasons.iter().map(|reason| (reason.words, reason.steps));
    json!({
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": finish_reason,
        "seed": answer.seed,
        "verification": match answer.verification {
            Verification::Rejection => "rejection",
            Verification::Block => "block",
            Verification::Coupled => "coupled",
        },
        "method": plan.method().to_string(),
        "drafter": plan.drafter().to_string(),
        "further_drafters":
            plan.additional_drafters().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "lookup": plan.lookup().to_string(),
        "placement": plan.placement().to_string(),
        "paced": answer.paced,
        "usage": {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.tokens.len(),
            "speculative": {
                "drafts": statistics.drafts,
                "lookups": statistics.lookups,
                "draft_tokens": statistics.draft_tokens,
                "draft_tokens_by_drafter": statistics.draft_tokens_by_drafter,
                "tested_per_position": statistics.tested,
                "accepted_per_position": statistics.accepted,
                "acceptance_per_position": statistics.acceptance_per_position(),
                "acceptance_rate": statistics.acceptance_rate(),
                "mean_accepted_tokens": statistics.mean_accepted_tokens(),
                "target_forwards": statistics.target_forwards,
                "decisions": decisions.collect::<BTreeMap<_, _>>(),
                "failures": statistics.failures,
            },
        },
        "timings": {
            "tokens_per_second": answer.tokens_per_second(),
            "first_token_ms": answer.first_token_ns as f64 / 1e6,
            "total_ms": answer.total_ns as f64 / 1e6,
            "draft_ms": statistics.draft_ns as f64 / 1e6,
            "score_ms": statistics.score_ns as f64 / 1e6,
            "outside_forwards_share": answer.trace.occupancy().outside_forwards_share(),
            "side_by_side_share": answer.trace.occupancy().overlap_share(),
        },
    })
}

/// Returns one object per token, with the field names of OpenAI's API; `token` is the id, as in
/// `tokens`.
fn json_logprobs(tokenizer: &Tokenizer, logprobs: &[TokenLogprob]) -> serde_json::Value {
    let entry = |token: TokenId, logprob: f32| {
        let text = tokenizer.piece(token);
        json!({ "token": token, "text": text, "logprob": logprob })
    };
    let with_alternatives = |logprob: &TokenLogprob| {
        let mut chosen = entry(logprob.token, logprob.logprob);
        let top = logprob.top.iter().map(|&(token, logprob)| entry(token, logprob));
        chosen["top_logprobs"] = top.collect();
        chosen
    };
    logprobs.iter().map(with_alternatives).collect()
}
