//! Rules of splitting text into words before byte-level BPE merges them.
//!
//! A GGUF file names its rule (`tokenizer.ggml.pre`). The names are those of llama.cpp, and the
//! regular expressions those of the models' `tokenizer.json`.

/// A rule of splitting text into words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Splitting {
    /// llama.cpp's names of the rule. Export uses the first.
    pub(crate) names: &'static [&'static str],
    /// Regular expressions, applied in turn to the parts that the earlier ones leave. A match is a
    /// part, and so is the text between two matches.
    pub(crate) regexes: &'static [&'static str],
    /// Whether text is normalized to NFC first.
    pub(crate) nfc: bool,
    /// Whether a word that is a token is not merged from its parts.
    pub(crate) ignore_merges: bool,
    /// Whether BOS is added to texts if the file does not say so.
    pub(crate) adds_bos: bool,
}

impl Splitting {
    /// Returns the rule with this name. Files without a name have the rule `default`.
    pub(crate) fn named(name: Option<&str>) -> Option<&'static Self> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or("default");
        SPLITTINGS.iter().find(|splitting| splitting.names.contains(&name))
    }

    /// Returns the names of all rules, for messages.
    pub(crate) fn all_names() -> String {
        let names: Vec<&str> = SPLITTINGS.iter().flat_map(|rule| rule.names).copied().collect();
        names.join(", ")
    }

    /// Returns the rule that does exactly this.
    pub(crate) fn of(regexes: &[&str], nfc: bool, ignore_merges: bool) -> Option<&'static Self> {
        SPLITTINGS.iter().find(|rule| {
            rule.regexes == regexes && rule.nfc == nfc && rule.ignore_merges == ignore_merges
        })
    }
}

/// The words of GPT-2.
pub(crate) const GPT_2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Every digit alone.
pub(crate) const DIGIT: &str = r"\p{N}";

/// Numbers in groups of three digits from the left.
const THREE_DIGITS: &str = r"\p{N}{1,3}";

const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// As Qwen2, but marks belong to words.
const QWEN_35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// As GPT-4o, but words of Chinese characters are words of their own.
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Runs of the letters that DeepSeek's authors list: cased ones.
const DEEPSEEK_LETTERS: &str = concat!(
    "\\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}",
    "\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}",
    "\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}",
    "\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}",
    "\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}",
    "\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}",
    "\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}",
    "\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}",
    "\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}",
    "\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}",
    "\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}",
    "\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}",
    "\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}",
    "\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}",
    "\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}",
    "\u{1E900}-\u{1E943}]+",
);

/// The expressions of DeepSeek-V3.
const DEEPSEEK_3: [&str; 3] = [
    THREE_DIGITS,
    "[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

/// Words up to punctuation, as BLOOM splits them.
const VIKING_WORD: &str = " ?[^(\\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+";

/// The letters, syllables and signs of DeepSeek's Chinese and Korean words.
const DEEPSEEK_SYLLABLES: &str = "[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+";

const fn rule(names: &'static [&'static str], regexes: &'static [&'static str]) -> Splitting {
    Splitting { names, regexes, nfc: false, ignore_merges: false, adds_bos: false }
}

/// All rules. Those of one model may have several names.
const SPLITTINGS: &[Splitting] = &[
    rule(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", r"[0-9][0-9][0-9]"]),
    rule(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "granite-docling",
        ],
        &[GPT_2],
    ),
    Splitting {
        ignore_merges: true,
        adds_bos: true,
        ..rule(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
            ],
            &[LLAMA_3],
        )
    },
    rule(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[LLAMA_3]),
    Splitting { nfc: true, ..rule(&["qwen2"], &[QWEN_2]) },
    Splitting { nfc: true, ..rule(&["qwen35"], &[QWEN_35]) },
    rule(
        &["deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2", "solar-open", "kormo"],
        &[QWEN_2],
    ),
    rule(
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[DIGIT, GPT_2],
    ),
    Splitting { ignore_merges: true, adds_bos: true, ..rule(&["tekken"], &[TEKKEN]) },
    rule(&["gpt-4o", "llama4", "kanana2", "minimax-m2"], &[GPT_4O]),
    rule(
        &["deepseek-llm"],
        &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            "\\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+",
            r"\s+$",
            DEEPSEEK_SYLLABLES,
            r"\p{N}+",
        ],
    ),
    rule(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_SYLLABLES, DIGIT]),
    rule(&["deepseek-v3", "hunyuan-dense", "joyai-llm"], &DEEPSEEK_3),
    rule(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, r"[0-9][0-9][0-9]"]),
    rule(&["bloom", "poro-chat", "gpt3-finnish"], &[VIKING_WORD]),
    rule(&["viking"], &[VIKING_WORD, DIGIT]),
    rule(&["kimi-k2"], &[KIMI_K2]),
];
