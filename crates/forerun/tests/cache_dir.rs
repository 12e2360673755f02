//! Pages in a folder: later engines find them, and answer as an engine without a folder does.

use crate::common::Pair;
use forerun::placement::available_cores;
use forerun::trace::{Span, SpanKind};
use forerun::{Answer, CacheType, Engine, Method, Options, Request};
use forerun_cache::{ANCHOR_ROWS, PAGE_ROWS};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, example_families, write_random_checkpoint,
};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::{TempDir, tempdir};

/// Returns a prompt of more than four pages, which no prompt with another number starts with.
fn prompt(number: usize) -> String {
    format!("{number} ka lo mi tu re. ").repeat(40).chars().take(400).collect()
}

fn complete(options: Options, number: usize) -> Answer {
    let request = Request { max_tokens: 12, ..Request::default() };
    Engine::open(options).unwrap().complete(&prompt(number), &request).unwrap()
}

/// Returns the options of a model with this folder.
fn with_folder(model: &Path, folder: &Path) -> Options {
    Options { cache_dir: Some(folder.to_owned()), ..Options::new(model) }
}

fn llama() -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    let model = folder.path().join("model");
    write_random_checkpoint(&model, &example_config(), 3, RandomDtype::F32).unwrap();
    (folder, model)
}

/// Returns the number of tokens of a prompt that whole pages can hold: its last one is computed.
fn in_pages(answer: &Answer, rows: usize) -> usize {
    (answer.prompt_tokens - 1) / rows * rows
}

/// Returns the files of all pages, with their sizes.
fn files(folder: &Path) -> Vec<(PathBuf, u64)> {
    let folders = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let entries = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
    let file = |entry: fs::DirEntry| (entry.path(), entry.metadata().unwrap().len());
    let mut files: Vec<_> = entries.map(|entry| file(entry.unwrap())).collect();
    files.sort();
    files
}

#[test]
fn later_engines_find_the_pages_of_every_family_and_type() {
    let models = [example_config()].into_iter().chain(example_families());
    // Two have too short contexts.
    let models =
        models.filter(|config| config.pooling.is_none() && config.max_position_embeddings > 256);
    let models = models.map(|config| (config, CacheType::F32));
    let types = [CacheType::F16, CacheType::Bf16, CacheType::Q8, CacheType::Q4];
    let types = types.map(|cache_type| (example_config(), cache_type));
    // All share a folder.
    let folder = tempdir().unwrap();
    for (number, (config, cache_type)) in models.chain(types).enumerate() {
        let name = format!("{:?} {cache_type:?} {number}", config.family);
        let model = folder.path().join("models").join(number.to_string());
        write_random_checkpoint(&model, &config, 3, RandomDtype::F32).unwrap();
        let options = || Options { cache_type: Some(cache_type), ..Options::new(&*model) };
        let cache_dir = Some(folder.path().join("pages"));
        let plain = complete(options(), 0);
        assert!(plain.prompt_tokens > ANCHOR_ROWS, "{name}");
        let recurrent = config.architecture().layers.iter().any(|layer| layer.recurrent.is_some());
        let rows = if recurrent { ANCHOR_ROWS } else { PAGE_ROWS };
        for held in [0, in_pages(&plain, rows)] {
            let kept = complete(Options { cache_dir: cache_dir.clone(), ..options() }, 0);
            assert_eq!((&kept.tokens, &kept.text), (&plain.tokens, &plain.text), "{name}");
            assert_eq!(kept.cached_prompt_tokens(), held, "{name}");
        }
    }
}

#[test]
fn targets_and_drafters_of_every_method_find_their_pages() {
    let pair = Pair::generated();
    let core = available_cores()[0];
    let folder = tempdir().unwrap();
    for method in Method::all() {
        let options = |cache_dir| Options {
            model: pair.target.clone().into(),
            draft_model: method.drafts().then(|| pair.drafter.clone().into()),
            method: Some(method.into()),
            placement: method
                .is_parallel()
                .then(|| format!("drafter=cpu:{core},target=cpu:{core},shared").parse().unwrap()),
            cache_dir,
            ..Options::default()
        };
        let plain = complete(options(None), 0);
        let cache_dir = folder.path().join(method.to_string());
        for is_first in [true, false] {
            let kept = complete(options(Some(cache_dir.clone())), 0);
            assert_eq!(kept.tokens, plain.tokens, "{method}");
            let held = if is_first { 0 } else { in_pages(&plain, PAGE_ROWS) };
            assert_eq!(kept.cached_prompt_tokens(), held, "{method}");
            let drafts = kept.trace.spans.iter().filter(|span| span.kind == SpanKind::Draft);
            let computed: usize = drafts.map(|span: &Span| span.computed_tokens).sum();
            let has_read_all = computed >= plain.prompt_tokens - 1;
            assert_eq!(has_read_all, is_first && method.drafts(), "{method}: {computed}");
        }
    }
}

#[test]
fn broken_files_are_replaced() {
    let ((_models, model), folder) = (llama(), tempdir().unwrap());
    let plain = complete(Options::new(&*model), 0);
    let with_folder = || with_folder(&model, folder.path());
    complete(with_folder(), 0);
    let whole = files(folder.path());
    assert_eq!(whole.len(), in_pages(&plain, PAGE_ROWS) / PAGE_ROWS);
    let change = |file: &Path, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(file).unwrap();
        change(&mut bytes);
        fs::write(file, bytes).unwrap();
    };
    let damages: [&dyn Fn(&Path); 7] = [
        &|file| change(file, &|bytes| *bytes.last_mut().unwrap() ^= 1),
        &|file| change(file, &|bytes| bytes[20] ^= 1),
        &|file| change(file, &|bytes| bytes.truncate(1_000)),
        &|file| change(file, &|bytes| bytes.push(0)),
        &|file| change(file, &Vec::clear),
        // The next version of the format.
        &|file| change(file, &|bytes| bytes[14] += 1),
        // The content of another page.
        &|file| {
            let other = whole.iter().find(|(other, _)| other != file).unwrap();
            fs::copy(&other.0, file).unwrap();
        },
    ];
    for (number, damage) in damages.iter().enumerate() {
        whole.iter().for_each(|(file, _)| damage(file));
        for is_broken in [true, false] {
            let answer = complete(with_folder(), 0);
            assert_eq!(answer.tokens, plain.tokens, "damage {number}");
            let held = answer.cached_prompt_tokens();
            assert_eq!(held < in_pages(&plain, PAGE_ROWS), is_broken, "damage {number}: {held}");
            assert_eq!(files(folder.path()), whole, "damage {number}");
        }
    }
}

#[test]
fn pages_belong_to_files_and_arithmetic() {
    let ((_models, model), folder) = (llama(), tempdir().unwrap());
    let with_folder = || with_folder(&model, folder.path());
    complete(with_folder(), 0);
    // Another type of weights.
    let options = Options { weight_type: Some("int8".parse().unwrap()), ..with_folder() };
    assert_eq!(complete(options, 0).cached_prompt_tokens(), 0);
    // The same weights in files that were written again, and other weights.
    for seed in [3, 4] {
        fs::remove_dir_all(&model).unwrap();
        write_random_checkpoint(&model, &example_config(), seed, RandomDtype::F32).unwrap();
        let plain = complete(Options::new(&*model), 0);
        let answer = complete(with_folder(), 0);
        assert_eq!((answer.cached_prompt_tokens(), answer.tokens), (0, plain.tokens), "{seed}");
    }
}

#[test]
fn a_folder_keeps_to_its_budget() {
    let ((_models, model), folder) = (llama(), tempdir().unwrap());
    complete(with_folder(&model, folder.path()), 0);
    let of_one: u64 = files(folder.path()).iter().map(|(_, len)| len).sum();
    let budget = 3 * of_one;
    for number in 1..9 {
        let cache_dir_size = Some(budget as usize);
        let options = || Options { cache_dir_size, ..with_folder(&model, folder.path()) };
        complete(options(), number);
        let all: u64 = files(folder.path()).iter().map(|(_, len)| len).sum();
        assert!((of_one..=budget).contains(&all), "{all} of {budget}");
        let again = complete(options(), number);
        assert_eq!(again.cached_prompt_tokens(), in_pages(&again, PAGE_ROWS), "{number}");
        // The first one is used each time, and stays.
        assert!(complete(options(), 0).cached_prompt_tokens() > 0, "{number}");
    }
    // Less than a page.
    complete(Options { cache_dir_size: Some(1_000), ..with_folder(&model, folder.path()) }, 0);
    assert!(files(folder.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_pages() {
    use std::os::unix::fs::PermissionsExt;
    let (models, model) = llama();
    let folder = models.path().join("pages");
    complete(with_folder(&model, &folder), 0);
    let folders = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    for path in folders.chain([folder.clone()]) {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{}", path.display());
    }
}

#[test]
fn engines_share_a_folder_at_the_same_time() {
    let ((_models, model), folder) = (llama(), tempdir().unwrap());
    let (model, folder) = (&*model, folder.path());
    let numbers = [0, 1, 2, 0, 1, 2];
    std::thread::scope(|scope| {
        for number in numbers {
            scope.spawn(move || {
                let plain = complete(Options::new(model), number);
                let kept = complete(with_folder(model, folder), number);
                assert_eq!(kept.tokens, plain.tokens, "{number}");
            });
        }
    });
    for number in numbers {
        let answer = complete(with_folder(model, folder), number);
        assert_eq!(answer.cached_prompt_tokens(), in_pages(&answer, PAGE_ROWS), "{number}");
    }
}

#[test]
fn folders_that_cannot_be_used_are_refused() {
    let (models, model) = llama();
    let file = models.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Engine::open(with_folder(&model, &file)).err().unwrap();
    assert!(error.to_string().contains("`cache_dir`"), "{error}");
    assert!(error.to_string().contains(&*file.to_string_lossy()), "{error}");
}
