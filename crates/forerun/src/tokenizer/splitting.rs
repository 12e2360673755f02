//! Rules of splitting text into words before byte-level BPE merges them.
//!
//! A GGUF file names its rule (`tokenizer.ggml.pre`). The names are those of llama.cpp, and the regular
//! expressions those of the models' `tokenizer.json`.

/// A rule of splitting text into words.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Splitting {
    /// llama.cpp's names of the rule. Export uses the first.
    pub(crate) names: &'static [&'static str],
    /// Regular expressions, applied in turn to the parts that the earlier ones leave. A match is a part,
    /// and so is the text between two matches.
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

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// As GPT-4o, but words of Chinese characters are words of their own.
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Runs of the letters that DeepSeek's authors list: cased ones.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}",
    r"\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}",
    r"\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}",
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}",
    r"\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}",
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}",
    r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}",
    r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}",
    r"\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}",
    r"\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}",
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}",
    r"\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}",
    r"\x{1E900}-\x{1E943}]+",
);

/// The expressions of DeepSeek-V3.
const DEEPSEEK_3: [&str; 3] = [
    THREE_DIGITS,
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

/// Words up to punctuation, as BLOOM splits them.
const VIKING_WORD: &str = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+";

/// The letters, syllables and signs of DeepSeek's Chinese and Korean words.
const DEEPSEEK_SYLLABLES: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";

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
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
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
