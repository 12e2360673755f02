//! Prompt suites: the default suite, Spec-Bench, HumanEval, GSM8K, MBPP, MGSM, and prompt files.

use crate::BenchError;
use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A prompt: one text, or the user's turns of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    /// The id of the prompt, unique in a comparison.
    pub id: String,
    /// The category of the prompt.
    pub category: String,
    /// The turns. The second turn follows the answer to the first one, and so on.
    pub turns: Vec<String>,
}

/// The default suite: beginnings of stories, which the demonstration models can continue.
const DEFAULT: &str = include_str!("../suites/default.jsonl");

/// Suites with their names, the file to name in errors, and the possible paths in the data folder.
const SUITES: [(&str, &str, &[&str]); 5] = [
    ("spec-bench", "spec_bench_question.jsonl", &["spec_bench_question.jsonl", "question.jsonl"]),
    ("humaneval", "HumanEval.jsonl.gz", &["HumanEval.jsonl.gz", "HumanEval.jsonl"]),
    ("gsm8k", "gsm8k_test.jsonl", &["gsm8k_test.jsonl"]),
    ("mbpp", "mbpp.jsonl", &["mbpp.jsonl"]),
    ("mgsm", "mgsm/*.tsv", &["mgsm"]),
];

/// Reads the prompts of suites and files.
///
/// The suites are `default`, `spec-bench`, `humaneval`, `gsm8k`, `mbpp` and `mgsm`. All but
/// `default` are read from the folder `data`. Files may be `.jsonl`, `.jsonl.gz` or `.tsv`. Any
/// other file is plain text, with blank lines between prompts.
///
/// # Errors
/// If a suite or file does not exist, a line is not a valid prompt, or two prompts have the same
/// id.
pub fn read(names: &[String], data: Option<&Path>) -> Result<Vec<Prompt>, BenchError> {
    let mut prompts = Vec::new();
    for name in names {
        prompts.extend(read_one(name, data)?);
    }
    let mut seen = BTreeSet::new();
    match prompts.iter().find(|prompt| !seen.insert(&prompt.id)) {
        Some(twice) => Err(BenchError::SamePrompt(twice.id.clone())),
        None => Ok(prompts),
    }
}

fn read_one(name: &str, data: Option<&Path>) -> Result<Vec<Prompt>, BenchError> {
    if name == "default" {
        return json_lines(DEFAULT, "default", Path::new("default.jsonl"));
    }
    let Some(&(suite, expected, paths)) = SUITES.iter().find(|suite| suite.0 == name) else {
        let file = Path::new(name);
        return match file.is_file() {
            true => read_file(file, &stem(file)),
            false => Err(BenchError::UnknownSuite(name.to_owned())),
        };
    };
    let data = data.ok_or_else(|| BenchError::NoData(suite.to_owned()))?;
    let missing =
        || BenchError::NoSuite { suite: suite.to_owned(), expected, folder: data.to_owned() };
    let path =
        paths.iter().map(|path| data.join(path)).find(|path| path.exists()).ok_or_else(missing)?;
    if !path.is_dir() {
        return read_file(&path, suite);
    }
    // A folder has one file for each language, which is a category.
    let files = tsv_files(&path)?;
    if files.is_empty() {
        return Err(missing());
    }
    let mut prompts = Vec::new();
    for file in files {
        prompts.extend(read_file(&file, &stem(&file))?);
    }
    Ok(prompts)
}

/// Returns the `.tsv` files of a folder, sorted by name.
fn tsv_files(folder: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let failed = |cause| BenchError::Read { file: folder.to_owned(), cause };
    let entries: Result<Vec<_>, _> = fs::read_dir(folder).map_err(failed)?.collect();
    let paths = entries.map_err(failed)?.into_iter().map(|entry| entry.path());
    let mut files: Vec<_> = paths.filter(|p| p.extension() == Some(OsStr::new("tsv"))).collect();
    files.sort();
    Ok(files)
}

/// Returns the name of a file without its extensions.
fn stem(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

fn read_file(file: &Path, name: &str) -> Result<Vec<Prompt>, BenchError> {
    let failed = |cause| BenchError::Read { file: file.to_owned(), cause };
    let bytes = fs::read(file).map_err(failed)?;
    let text = match file.extension() == Some(OsStr::new("gz")) {
        true => {
            let mut text = String::new();
            GzDecoder::new(&bytes[..]).read_to_string(&mut text).map_err(failed)?;
            text
        }
        false => String::from_utf8(bytes).map_err(|error| failed(std::io::Error::other(error)))?,
    };
    let path = file.to_string_lossy();
    if path.ends_with(".jsonl") || path.ends_with(".jsonl.gz") {
        json_lines(&text, name, file)
    } else if path.ends_with(".tsv") {
        Ok(tab_separated(&text, name))
    } else {
        Ok(paragraphs(&text, name))
    }
}

/// Parses JSON lines with one prompt each.
///
/// The turns are in `turns` (Spec-Bench and our own files). Otherwise the only turn is in `prompt`
/// (HumanEval and our own files), `question` (GSM8K) or `text` (MBPP). If there is no id or
/// category, the number of the line and the name of the suite are used.
fn json_lines(text: &str, name: &str, file: &Path) -> Result<Vec<Prompt>, BenchError> {
    let mut prompts = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let invalid = |reason| BenchError::Line { file: file.to_owned(), line: index + 1, reason };
        let value: Value =
            serde_json::from_str(line).map_err(|error| invalid(error.to_string()))?;
        let turns = turns(&value).ok_or_else(|| {
            invalid(
                "expected a text that is not empty in \"turns\", \"prompt\", \"question\" or \"text\""
                    .into(),
            )
        })?;
        let id = ["id", "question_id", "task_id"].iter().find_map(|key| match &value[*key] {
            Value::String(id) => Some(id.clone()),
            Value::Number(id) => Some(format!("{name}/{id}")),
            _ => None,
        });
        let id = id.unwrap_or_else(|| format!("{name}/{}", index + 1));
        let category = value["category"].as_str().unwrap_or(name).to_owned();
        prompts.push(Prompt { id, category, turns });
    }
    Ok(prompts)
}

fn turns(value: &Value) -> Option<Vec<String>> {
    let turns: Vec<String> = match value["turns"].as_array() {
        Some(turns) => {
            turns.iter().map(|turn| turn.as_str().map(str::to_owned)).collect::<Option<_>>()?
        }
        None => {
            let keys = ["prompt", "question", "text"];
            vec![keys.iter().find_map(|key| value[*key].as_str())?.to_owned()]
        }
    };
    (!turns.is_empty() && turns.iter().all(|turn| !turn.is_empty())).then_some(turns)
}

/// Parses MGSM's format: a question and its answer on each line, separated by a tab.
fn tab_separated(text: &str, name: &str) -> Vec<Prompt> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompt = |(index, line): (usize, &str)| Prompt {
        id: format!("{name}/{}", index + 1),
        category: name.to_owned(),
        turns: vec![line.split('\t').next().unwrap_or_default().to_owned()],
    };
    lines.map(prompt).collect()
}

/// Parses plain text with blank lines between prompts.
fn paragraphs(text: &str, name: &str) -> Vec<Prompt> {
    let mut texts = vec![String::new()];
    for line in text.lines() {
        match (line.trim().is_empty(), texts.last_mut()) {
            (false, Some(last)) if last.is_empty() => last.push_str(line),
            (false, Some(last)) => {
                last.push('\n');
                last.push_str(line);
            }
            _ => texts.push(String::new()),
        }
    }
    texts.retain(|text| !text.is_empty());
    let prompt = |(index, text)| Prompt {
        id: format!("{name}/{}", index + 1),
        category: name.to_owned(),
        turns: vec![text],
    };
    texts.into_iter().enumerate().map(prompt).collect()
}

/// Keeps at most `count` prompts of each category, evenly spread over the category, in their order.
#[must_use]
pub fn limit(prompts: Vec<Prompt>, count: usize) -> Vec<Prompt> {
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for prompt in &prompts {
        *sizes.entry(prompt.category.clone()).or_default() += 1;
    }
    let mut indices: BTreeMap<String, usize> = BTreeMap::new();
    let keep = |prompt: &Prompt| {
        let (size, index) = (sizes[&prompt.category], indices.entry(prompt.category.clone()));
        let index = index.or_default();
        let kept = count.min(size);
        // The k-th prompt that is kept has the index k · size / kept, rounded down.
        let stays = (*index * kept) % size < kept;
        *index += 1;
        stays
    };
    let mut prompts = prompts;
    prompts.retain(keep);
    prompts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn prompt(id: &str, category: &str) -> Prompt {
        Prompt { id: id.into(), category: category.into(), turns: vec!["x".into()] }
    }

    #[test]
    fn the_default_suite_has_sixty_prompts_in_three_categories() {
        let prompts = read(&["default".into()], None).unwrap();
        let categories: BTreeSet<&str> = prompts.iter().map(|p| p.category.as_str()).collect();
        assert!(prompts.len() >= 60 && categories.len() >= 3, "{} {categories:?}", prompts.len());
        assert!(prompts.iter().all(|p| p.turns.len() == 1 && p.turns[0].len() > 40));
        let texts: BTreeSet<&str> = prompts.iter().map(|p| p.turns[0].as_str()).collect();
        assert_eq!(texts.len(), prompts.len());
    }

    #[test]
    fn every_published_format_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write(
            "spec_bench_question.jsonl",
            "{\"question_id\": 81, \"category\": \"writing\", \"turns\": [\"a\", \"b\"]}\n",
        );
        write("gsm8k_test.jsonl", "{\"question\": \"c\", \"answer\": \"4\"}\n\n");
        write("mbpp.jsonl", "{\"text\": \"d\", \"code\": \"e\", \"task_id\": 1}");
        write("mgsm/mgsm_en.tsv", "f\t18\ng\t3\n");
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(b"{\"task_id\": \"HumanEval/0\", \"prompt\": \"def f():\\n\"}\n").unwrap();
        fs::write(folder.path().join("HumanEval.jsonl.gz"), packed.finish().unwrap()).unwrap();
        let names = ["spec-bench", "humaneval", "gsm8k", "mbpp", "mgsm"].map(String::from);
        let read = read(&names, Some(folder.path())).unwrap();
        let found: Vec<_> =
            read.iter().map(|p| (p.id.as_str(), p.category.as_str(), p.turns.join("|"))).collect();
        let expected = [
            ("spec-bench/81", "writing", "a|b"),
            ("HumanEval/0", "humaneval", "def f():\n"),
            ("gsm8k/1", "gsm8k", "c"),
            ("mbpp/1", "mbpp", "d"),
            ("mgsm_en/1", "mgsm_en", "f"),
            ("mgsm_en/2", "mgsm_en", "g"),
        ];
        assert_eq!(found, expected.map(|(id, category, turns)| (id, category, turns.to_owned())));
    }

    #[test]
    fn plain_text_is_split_at_blank_lines() {
        let texts = paragraphs("\none\ntwo\n \n\nthree\n", "notes");
        let found: Vec<_> = texts.iter().map(|p| (p.id.as_str(), p.turns[0].as_str())).collect();
        assert_eq!(found, [("notes/1", "one\ntwo"), ("notes/2", "three")]);
    }

    #[test]
    fn invalid_suites_are_rejected_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("own.jsonl");
        let error = |names: &[&str], data| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            read(&names, data).unwrap_err().to_string()
        };
        assert!(error(&["nonsense"], None).contains("spec-bench"));
        assert!(error(&["gsm8k"], None).contains("set `data`"));
        assert!(error(&["gsm8k"], Some(folder.path())).contains("gsm8k_test.jsonl"));
        assert!(error(&["mgsm"], Some(folder.path())).contains("mgsm/*.tsv"));
        assert!(error(&["default", "default"], None).contains("two prompts"));
        let file = file.to_str().unwrap();
        fs::write(file, "{\"prompt\": \"a\"}\n{\"prompt\": \"\"}\n").unwrap();
        assert!(error(&[file], None).contains("line 2"));
        fs::write(file, "{\"prompt\": \"a\"}\n{").unwrap();
        assert!(error(&[file], None).contains("line 2"));
    }

    #[test]
    fn a_limit_applies_per_category_and_spreads_evenly() {
        let mut prompts: Vec<Prompt> =
            (0..10).map(|index| prompt(&format!("a{index}"), "a")).collect();
        prompts.insert(3, prompt("b0", "b"));
        let kept = |count| {
            let kept = limit(prompts.clone(), count);
            kept.iter().map(|prompt| prompt.id.clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(kept(1), "a0 b0");
        assert_eq!(kept(2), "a0 b0 a5");
        assert_eq!(kept(3), "a0 b0 a4 a7");
        assert_eq!(kept(99).split(' ').count(), 11);
        assert_eq!(kept(0), "");
    }

    #[test]
    fn the_published_files_are_read() {
        let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
        let data = std::env::var_os("FORERUN_DATA").map_or(default, PathBuf::from).join("prompts");
        if !data.is_dir() {
            eprintln!("SKIPPED: no {} (set FORERUN_DATA)", data.display());
            return;
        }
        for (suite, count, categories) in [
            ("spec-bench", 480, 13),
            ("humaneval", 164, 1),
            ("gsm8k", 1319, 1),
            ("mbpp", 974, 1),
            ("mgsm", 1000, 4),
        ] {
            let prompts = read(&[suite.into()], Some(&data)).unwrap();
            let found: BTreeSet<&str> = prompts.iter().map(|p| p.category.as_str()).collect();
            assert_eq!((prompts.len(), found.len()), (count, categories), "{suite}");
        }
    }
}
