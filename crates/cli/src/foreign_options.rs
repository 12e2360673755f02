//! Options and commands of llama.cpp, ollama and vLLM that are spelt differently here.
//!
//! Spellings that the parser can read are hidden aliases of options. It reads `-ngl` as `-n gl`,
//! though, so what was meant is said after a line could not be parsed.

use crate::arguments::headings;
use crate::config_file::option;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use std::ffi::OsString;

/// What stands in place of other engines' options.
const OTHERS: [(&str, &str); 36] = [
    ("-ngl", "use --gpu-layers N, or --placement target=gpu:0 for all layers"),
    ("-cmoe -ncmoe -ot --override-tensor", "use --cpu-moe, or --n-cpu-moe N"),
    ("-md", "use --draft-model MODEL"),
    (
        "--speculative-config",
        "use --draft-model MODEL, and --draft-tokens N if you want a fixed length",
    ),
    ("-ngld", "use --placement drafter=gpu:0,target=gpu:0,shared"),
    ("-np", "use --parallel N"),
    ("-sys", "use --system TEXT"),
    ("--system-prompt-file -sysf", "use --system \"$(cat FILE)\""),
    ("--chat-template-file", "use --chat-template FILE"),
    ("--grammar-file", "use --grammar FILE"),
    ("-s", "use --seed N"),
    ("-r", "use --stop TEXT"),
    ("-l", "use --logit-bias TOKEN=BIAS"),
    ("-j", "use --json-schema JSON"),
    ("-tb --threads-batch", "use --threads N, for all passes"),
    (
        "-ctk -ctv --cache-type-k --cache-type-v --kv-cache-dtype",
        "use --kv-type TYPE, for keys and values",
    ),
    ("--quantization", "use --dtype TYPE, or name a quantized file"),
    ("--lora-modules", "use --lora NAME=PATH, once for each adapter"),
    ("-hf -hfr", "name the model by its hub id, such as owner/name:Q4_K_M"),
    (
        "-tp --tensor-parallel-size -pp --pipeline-parallel-size",
        "use --placement, which says what computes a model together, such as target=rank:1+rank:2",
    ),
    (
        "-dev --device -mg --main-gpu -sm --split-mode -ts --tensor-split --numa",
        "use --placement, which says which devices compute what",
    ),
    ("--gpu-memory-utilization", "use --cache-bytes BYTES, the memory for keys and values"),
    (
        "-cnv --conversation -i --interactive",
        "it is not needed, because forerun chat MODEL converses",
    ),
    (
        "-no-cnv --no-conversation -st --single-turn",
        "it is not needed, because forerun run MODEL \"text\" answers once",
    ),
    ("-f --file", "pipe the text in: forerun run MODEL < FILE"),
    ("-fa --flash-attn", "it is not needed, because there is one kind of attention"),
    (
        "-b -ub --batch-size --ubatch-size --max-num-batched-tokens --enable-chunked-prefill",
        "it is not needed, because forerun chooses how many tokens a pass has",
    ),
    ("--draft-min", "use --draft-tokens auto, which drafts as far as it pays"),
    ("--mirostat", "its state depends on all earlier rows: use --min-p or --top-p"),
    (
        "--no-mmap --mlock",
        "it is not needed, because forerun copies weights as the kernels read them",
    ),
    ("--repeat-last-n", "use --repetition-penalty, which looks at the whole text"),
    (
        "--keep --no-context-shift",
        "it is not needed: a full chat leaves out its oldest turns, not the system message",
    ),
    ("-cb --cont-batching --enable-prefix-caching", "it is not needed, because it is always so"),
    (
        "--enforce-eager --no-warmup --swap-space --block-size -dt --defrag-thold",
        "it is not needed here",
    ),
    ("--trust-remote-code", "it is not needed, because forerun runs no code of a checkpoint"),
    ("--jinja", "it is not needed, because chat templates are always Jinja"),
];

/// Options with the prompt, for the commands that chat.
const PROMPTS: [&str; 2] = ["-p", "--prompt"];

/// What stands in place of ollama's commands.
const COMMANDS: [(&str, &str); 8] = [
    ("pull", "use forerun models pull"),
    ("list", "use forerun models list"),
    ("ls", "use forerun models list"),
    ("show", "use forerun models show"),
    ("rm", "use forerun models rm"),
    ("ps", IN_COMMANDS),
    ("stop", IN_COMMANDS),
    ("create", "give the options to forerun run or forerun serve, or in the file of --config"),
];

const IN_COMMANDS: &str = "there is no background service, and a model is in memory only while a \
                           command such as forerun serve runs";

/// Returns what was meant by an option or a command of a line that could not be parsed, if that is
/// known.
pub(crate) fn hint(root: &Command, line: &[OsString]) -> Option<String> {
    let mut command = root;
    let mut words = line.iter().skip(1).filter_map(|word| word.to_str()).peekable();
    if let Some(first) = words.peek().filter(|word| root.find_subcommand(word).is_none())
        && let Some((_, ours)) = COMMANDS.iter().find(|(theirs, _)| theirs == first)
    {
        return Some(format!("there is no command {first}: {ours}"));
    }
    if let Some(first) = words.peek().filter(|word| word.ends_with(".gguf")) {
        return Some(format!("there is no command {first}: use forerun run {first}"));
    }
    for word in words.take_while(|word| *word != "--") {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner;
            continue;
        }
        let name = word.split('=').next().unwrap_or(word);
        if is_option(command, name) {
            continue;
        }
        if PROMPTS.contains(&name) && ["chat", "run"].contains(&command.get_name()) {
            let ours = "write the prompt after the model: forerun run MODEL \"text\"";
            return Some(format!("there is no option {name}: {ours}"));
        }
        let is_it = |(theirs, _): &&(&str, &str)| theirs.split(' ').any(|theirs| theirs == name);
        if let Some((_, ours)) = OTHERS.iter().find(is_it)
            && has_options(command, ours)
        {
            return Some(format!("there is no option {name}: {ours}"));
        }
        let long = name.trim_start_matches('-').replace('_', "-");
        let is_ours = long.len() > 1 && option(command, &long).is_some();
        if name.starts_with('-') && is_ours {
            return Some(format!("there is no option {name}: use --{long}"));
        }
        if command.get_name() == "serve"
            && let Some(field) = field_of_requests(root, &long)
        {
            return Some(format!("there is no option {name}: each request says it, as `{field}`"));
        }
    }
    None
}

/// Returns the field of a server's requests that is an option of commands which answer themselves.
fn field_of_requests(root: &Command, long: &str) -> Option<String> {
    let argument = option(root.find_subcommand("generate")?, long)?;
    let is_of_answers = [headings::SAMPLING, headings::STOPPING].map(Some);
    let is_of_answers = is_of_answers.contains(&argument.get_help_heading());
    let is_field = |long: &&str| is_of_answers && *long != "suggested-sampling";
    argument.get_long().filter(is_field).map(|long| long.replace('-', "_"))
}

/// Returns what to do instead if the error is a message after the model of `forerun chat`. Suggests
/// an option in place of an unknown one only if it is spelt almost alike.
pub(crate) fn explained(root: &Command, line: &[OsString], error: &mut Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return None };
    let given = given.clone();
    let words = line.iter().skip(1).filter_map(|word| word.to_str());
    let command =
        words.fold(root, |command, word| command.find_subcommand(word).unwrap_or(command));
    if command.get_name() == "chat" && !given.starts_with('-') {
        return Some(format!(
            "chat takes no message ({given:?}): type it after the start, or use forerun run MODEL \"text\""
        ));
    }
    let typed = given.strip_prefix("--")?;
    // The usage names the suggestion, too.
    for kind in [ContextKind::Suggested, ContextKind::SuggestedArg, ContextKind::Usage] {
        error.remove(kind);
    }
    let longs = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let longs = longs.filter_map(clap::Arg::get_long);
    let distance = |long: &&str| strsim::damerau_levenshtein(long, typed);
    let closest = longs.min_by_key(distance).filter(|long| distance(long) <= typed.len() / 4);
    if let Some(long) = closest {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{long}")));
    }
    None
}

/// Returns whether a command has an option of exactly this name: `-s`, not `-s5`.
fn is_option(command: &Command, name: &str) -> bool {
    if let Some(long) = name.strip_prefix("--") {
        return !long.contains('_') && option(command, long).is_some();
    }
    let mut letters = name.strip_prefix('-').unwrap_or_default().chars();
    let (Some(letter), None) = (letters.next(), letters.next()) else { return false };
    command.get_arguments().any(|argument| {
        let aliases = argument.get_all_short_aliases().unwrap_or_default();
        argument.get_short() == Some(letter) || aliases.contains(&letter)
    })
}

/// Returns whether a command has all options that a text names, or answers prompts if it names
/// none.
fn has_options(command: &Command, text: &str) -> bool {
    if !text.contains("--") {
        return option(command, "threads").is_some();
    }
    let mut longs = text.split([' ', ',']).filter_map(|word| word.strip_prefix("--"));
    longs.all(|long| option(command, long).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::{CommandFactory, Parser};

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn options_of_other_engines_say_what_is_meant() {
        for (line, meant) in [
            ("run demo -ngl 99", "-ngl: use --gpu-layers"),
            ("run demo -ncmoe 9", "-ncmoe: use --cpu-moe"),
            ("generate -m demo -md demo", "-md: use --draft-model"),
            ("chat demo -temp 0.7", "-temp: use --temp"),
            ("run demo -top-k=40", "-top-k: use --top-k"),
            ("run -hf owner/name", "-hf: name the model"),
            ("run demo --lora-modules a=x b=y", "--lora-modules: use --lora"),
            ("run demo -p Why?", "-p: write the prompt after the model"),
            ("chat demo --prompt=Why?", "--prompt: write the prompt after the model"),
            ("run demo -s 3", "-s: use --seed"),
            ("run demo -cnv", "-cnv: it is not needed"),
            ("chat demo -i", "-i: it is not needed"),
            ("run demo -fa on", "-fa: it is not needed"),
            ("generate demo -p x -fa", "-fa: it is not needed"),
            ("generate -m demo -p x -fa on", "-fa: it is not needed"),
            ("run demo --top_k 40", "--top_k: use --top-k"),
            ("run demo --no-mmap", "--no-mmap: it is not needed"),
            ("generate demo -p x --mirostat 2", "--mirostat: its state depends"),
            ("run demo --repeat-last-n 64", "--repeat-last-n: use --repetition-penalty"),
            ("run demo --mlock", "--mlock: it is not needed"),
            ("chat demo --keep 4", "--keep: it is not needed"),
            ("chat demo --system-prompt-file x", "--system-prompt-file: use --system"),
            #[cfg(feature = "server")]
            ("serve demo --n-predict 5", "--n-predict: each request says it, as `max_tokens`"),
            #[cfg(feature = "server")]
            ("serve demo --temp 0", "--temp: each request says it, as `temperature`"),
            ("run demo --batch-size 64", "--batch-size: it is not needed"),
            ("run demo --draft-min 2", "--draft-min: use --draft-tokens auto"),
            ("model.gguf", "model.gguf: use forerun run model.gguf"),
            ("run demo -mg 0", "-mg: use --placement"),
            ("run demo -tb 2", "-tb: use --threads"),
            ("run demo -tp 2", "-tp: use --placement"),
            ("chat demo --tensor-parallel-size=2", "--tensor-parallel-size: use --placement"),
        ] {
            let line = words(&format!("forerun {line}"));
            assert!(Arguments::try_parse_from(&line).is_err(), "{line:?}");
            let hint = hint(&Arguments::command(), &line);
            assert!(hint.as_ref().is_some_and(|hint| hint.contains(meant)), "{line:?}: {hint:?}");
        }
        for line in [
            "forerun chat -x",
            "forerun run demo -- -ngl",
            "forerun devices -temp 1",
            // The command has the first, and not what stands in place of the second.
            "forerun generate -p x --wrong",
            "forerun devices -s 1",
            "forerun serve demo --suggested-sampling",
        ] {
            assert_eq!(hint(&Arguments::command(), &words(line)), None, "{line}");
        }
    }

    #[test]
    fn only_options_that_are_spelt_almost_alike_are_suggested() {
        for (line, meant, other) in [
            ("run demo --temprature 1", "'--temperature'", None),
            ("run demo --max-tokenz 3", "'--max-tokens'", None),
            ("run demo --mmproj x", "'--mmproj'", Some("tip")),
            ("run demo --dynatemp 0", "'--dynatemp'", Some("tip")),
            ("chat demo hello", "use forerun run MODEL \"text\"", None),
        ] {
            let line = words(&format!("forerun {line}"));
            let mut error = Arguments::try_parse_from(&line).unwrap_err();
            let text = explained(&Arguments::command(), &line, &mut error);
            let text = text.unwrap_or_else(|| error.to_string());
            assert!(
                text.contains(meant) && other.is_none_or(|word| !text.contains(word)),
                "{text}"
            );
        }
    }

    #[test]
    fn commands_of_ollama_say_what_is_meant() {
        for (line, meant) in [
            ("pull owner/name", "pull: use forerun models pull"),
            ("list", "list: use forerun models list"),
            ("ls", "ls: use forerun models list"),
            ("show demo", "show: use forerun models show"),
            ("rm owner/name", "rm: use forerun models rm"),
            ("ps", "ps: there is no background service"),
        ] {
            let line = words(&format!("forerun {line}"));
            assert!(Arguments::try_parse_from(&line).is_err(), "{line:?}");
            let hint = hint(&Arguments::command(), &line);
            assert!(hint.as_ref().is_some_and(|hint| hint.contains(meant)), "{line:?}: {hint:?}");
        }
        // The word is no command there.
        for line in ["forerun models pull", "forerun run list --wrong", "forerun pulls"] {
            assert_eq!(hint(&Arguments::command(), &words(line)), None, "{line}");
        }
    }

    #[test]
    fn options_that_mean_the_same_have_the_names_of_other_engines() {
        for line in [
            "chat -m demo -c 512 -n 8 --temp 0.5 -t 1 --model-draft demo --draft-max 4",
            "chat demo --speculative-model demo --num-speculative-tokens 4",
            "run demo --ctx-size 512 --n-predict -1 --draft 4 --ngl 3 --repeat-penalty 1.1",
            "generate demo --max-model-len 512 --predict 8 --draft-n 4 --n-gpu-layers 3",
            #[cfg(feature = "server")]
            "serve demo -c 0 --host 0.0.0.0 --port 80 --served-model-name a --max-num-seqs 2",
        ] {
            let parsed = Arguments::try_parse_from(words(&format!("forerun {line}")));
            assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
        }
    }
}
