//! Options of llama.cpp and vLLM that are spelt differently here.
//!
//! Spellings that the parser can read are hidden aliases of options. It reads `-ngl` as `-n gl`,
//! though, so what was meant is said after a line could not be parsed.

use crate::config_file::option;
use clap::Command;
use std::ffi::OsString;

/// What stands in place of other engines' options.
const OTHERS: [(&str, &str); 10] = [
    ("-ngl", "use --gpu-layers N, or --placement target=gpu:0 for all layers"),
    ("-md", "use --draft-model MODEL"),
    ("-np", "use --parallel N"),
    ("-sys", "use --system TEXT"),
    ("-ctk", "use --kv-type TYPE, for keys and values"),
    ("-ctv", "use --kv-type TYPE, for keys and values"),
    ("-hf", "name the model by its hub id, such as owner/name:Q4_K_M"),
    ("-tp", TENSOR_PARALLEL),
    ("--tensor-parallel-size", TENSOR_PARALLEL),
    ("--gpu-memory-utilization", "use --cache-bytes BYTES, the memory for keys and values"),
];

const TENSOR_PARALLEL: &str = "use --placement, which says what computes a model together, such as \
                               target=rank:1+rank:2";

/// Returns what was meant by an option of a line that could not be parsed, if that is known.
pub(crate) fn hint(root: &Command, line: &[OsString]) -> Option<String> {
    let mut command = root;
    let words = line.iter().skip(1).filter_map(|word| word.to_str());
    for word in words.take_while(|word| *word != "--") {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner;
            continue;
        }
        let name = word.split('=').next().unwrap_or(word);
        if let Some((_, ours)) = OTHERS.iter().find(|(theirs, _)| *theirs == name) {
            return Some(format!("there is no option {name}: {ours}"));
        }
        let long = name.strip_prefix('-').filter(|long| long.len() > 1);
        if let Some(long) = long.filter(|long| option(command, long).is_some()) {
            return Some(format!("there is no option {name}: use --{long}"));
        }
    }
    None
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
            ("generate -m demo -md demo", "-md: use --draft-model"),
            ("chat demo -temp 0.7", "-temp: use --temp"),
            ("run demo -top-k=40", "-top-k: use --top-k"),
            ("run -hf owner/name", "-hf: name the model"),
            ("run demo -tp 2", "-tp: use --placement"),
            ("chat demo --tensor-parallel-size=2", "--tensor-parallel-size: use --placement"),
        ] {
            let line = words(&format!("forerun {line}"));
            assert!(Arguments::try_parse_from(&line).is_err(), "{line:?}");
            let hint = hint(&Arguments::command(), &line);
            assert!(hint.as_ref().is_some_and(|hint| hint.contains(meant)), "{line:?}: {hint:?}");
        }
        for line in ["forerun chat -x", "forerun run demo -- -ngl", "forerun devices -temp 1"] {
            assert_eq!(hint(&Arguments::command(), &words(line)), None, "{line}");
        }
    }

    #[test]
    fn options_that_mean_the_same_have_the_names_of_other_engines() {
        for line in [
            "chat -m demo -c 512 -n 8 --temp 0.5 -t 1 --model-draft demo --draft-max 4",
            "run demo --ctx-size 512 --n-predict -1 --draft 4 --n-gpu-layers 3 --repeat-penalty 1.1",
            "generate demo --max-model-len 512 --predict 8 --draft-n 4",
            #[cfg(feature = "server")]
            "serve demo -c 0 --host 0.0.0.0 --port 80 --served-model-name a --max-num-seqs 2",
        ] {
            let parsed = Arguments::try_parse_from(words(&format!("forerun {line}")));
            assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
        }
    }
}
