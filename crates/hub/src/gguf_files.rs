//! The choice of a GGUF model among the files of a repository.

use forerun_formats::checkpoint::gguf::{is_model_name, part_names};

/// The quantizations that are preferred if none is requested, as by llama.cpp.
const PREFERRED: [&str; 2] = ["Q4_K_M", "Q4_0"];

/// Returns the names of all parts of a GGUF model among `files`: the one that is named after
/// `quantization`, or the preferred one. `None` if there is no such model.
pub(crate) fn choose(files: &[String], quantization: Option<&str>) -> Option<Vec<String>> {
    let models = all(files);
    let chosen = match quantization {
        Some(quantization) => named(&models, quantization),
        None => PREFERRED
            .iter()
            .find_map(|quantization| named(&models, quantization))
            .or_else(|| models.first().copied()),
    };
    chosen.map(part_names)
}

/// Returns the names of all GGUF models, sorted. Names that lead out of a folder are not among
/// them.
pub(crate) fn all(files: &[String]) -> Vec<&str> {
    let is_plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains('\\');
    let is_model = |name: &&str| {
        name.split('/').all(is_plain) && name.rsplit('/').next().is_some_and(is_model_name)
    };
    let mut models: Vec<&str> = files.iter().map(String::as_str).filter(is_model).collect();
    models.sort_unstable();
    models
}

/// Returns the first model whose name contains the quantization, preferably as a whole: `BF16`
/// contains `F16`, and `Q4_K_M` contains `Q4_K`.
fn named<'a>(models: &[&'a str], quantization: &str) -> Option<&'a str> {
    let quantization = quantization.to_ascii_lowercase();
    let is_inner =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let contains = |name: &str| name.to_ascii_lowercase().contains(&quantization);
    let contains_whole = |name: &str| {
        let name = name.to_ascii_lowercase();
        name.match_indices(&quantization).any(|(start, found)| {
            let bytes = name.as_bytes();
            let before = start.checked_sub(1).and_then(|at| bytes.get(at));
            !is_inner(before) && !is_inner(bytes.get(start + found.len()))
        })
    };
    let first = |is_match: &dyn Fn(&str) -> bool| models.iter().find(|name| is_match(name));
    first(&contains_whole).or_else(|| first(&contains)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(files: &[&str], quantization: Option<&str>) -> Option<Vec<String>> {
        let files: Vec<String> = files.iter().map(|&name| name.to_owned()).collect();
        choose(&files, quantization)
    }

    #[test]
    fn a_quantization_names_a_file() {
        let files = [
            "README.md",
            "mmproj-Q8_0.gguf",
            "x-BF16.gguf",
            "x-F16.gguf",
            "x-Q4_K_S.gguf",
            "x-Q8_0.gguf",
            "x.Q4_K_M.gguf",
        ];
        for (quantization, expected) in [
            ("F16", "x-F16.gguf"),
            ("bf16", "x-BF16.gguf"),
            ("q4_k_m", "x.Q4_K_M.gguf"),
            ("Q4_K", "x-Q4_K_S.gguf"),
            ("Q8", "x-Q8_0.gguf"),
        ] {
            let chosen = chosen(&files, Some(quantization));
            assert_eq!(chosen, Some(vec![expected.to_owned()]), "{quantization}");
        }
        assert_eq!(chosen(&files, Some("Q5_0")), None);
        assert_eq!(chosen(&files, None), Some(vec!["x.Q4_K_M.gguf".to_owned()]));
        let files = ["b-Q8_0.gguf", "b-Q4_0.gguf"];
        assert_eq!(chosen(&files, None), Some(vec!["b-Q4_0.gguf".to_owned()]));
        let files = ["b-Q8_0.gguf", "b-Q6_K.gguf"];
        assert_eq!(chosen(&files, None), Some(vec!["b-Q6_K.gguf".to_owned()]));
        assert_eq!(chosen(&["config.json"], None), None);
    }

    #[test]
    fn all_parts_belong_to_the_model() {
        let files = ["Q8_0/x-Q8_0-00002-of-00002.gguf", "Q8_0/x-Q8_0-00001-of-00002.gguf"];
        let parts = [files[1], files[0]].map(str::to_owned);
        assert_eq!(chosen(&files, Some("Q8_0")), Some(parts.to_vec()));
        // The missing part is reported when it is requested.
        assert_eq!(chosen(&files[..1], None), Some(parts.to_vec()));
    }

    #[test]
    fn names_that_lead_out_of_the_cache_are_ignored() {
        for name in ["../x.gguf", "/x.gguf", "a/../x.gguf", ".x.gguf", "a\\x.gguf"] {
            assert_eq!(chosen(&[name], None), None, "{name}");
        }
    }
}
