//! Invalid files, one by one. Each is rejected with an error that names the field.

use super::builder::*;
use forerun_formats::checkpoint::Tensor;

/// Changes a valid file, and checks that it is rejected with a message that contains all the words.
fn rejected(change: impl FnOnce(&mut Builder), words: &[&str]) {
    let mut builder = Builder::llama();
    assert!(builder.read().is_ok());
    change(&mut builder);
    assert_message(builder.bytes(), words);
}

fn assert_message(bytes: Vec<u8>, words: &[&str]) {
    let message = match read_bytes(bytes) {
        Ok(_) => panic!("expected an error with {words:?}"),
        Err(error) => error.to_string(),
    };
    assert!(message.starts_with("a.gguf: "), "{message}");
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

/// Sets an option to a value, and expects the option's name and more words in the error.
fn option(key: &str, value: Value, words: &[&str]) {
    let quoted = format!("\"{key}\"");
    let words: Vec<&str> = [&*quoted].into_iter().chain(words.iter().copied()).collect();
    rejected(|builder| builder.set(key, value), &words);
}

const HUGE: u64 = 1 << 63;

#[test]
fn heads_of_files() {
    let bytes = Builder::llama().bytes();
    for length in [0, 3, 7] {
        assert_message(bytes[..length].to_vec(), &["version 2 or 3", &format!("{length} bytes")]);
    }
    assert_message(
        bytes[..12].to_vec(),
        &["the number of tensors is 8 bytes long", "at most the 4"],
    );
    assert_message(bytes[..23].to_vec(), &["the number of metadata entries is 8 bytes long"]);
    rejected(|builder| builder.magic = *b"GGML", &["begins with \"GGML\""]);
    rejected(|builder| builder.version = 1, &["version 1"]);
    rejected(|builder| builder.version = 4, &["version 4"]);
    rejected(|builder| builder.version = 3_u32.swap_bytes(), &["big-endian", "convert"]);
    for count in [HUGE, u64::MAX, 1 << 20] {
        let words = [&*format!("the number of tensors is {count}"), "at most 131072"];
        rejected(|builder| builder.tensor_count = Some(count), &words);
        let words = [&*format!("the number of metadata entries is {count}"), "at most 65536"];
        rejected(|builder| builder.entry_count = Some(count), &words);
    }
    rejected(|builder| builder.tensor_count = Some(100), &["the name of tensor 12 is empty"]);
    rejected(|builder| builder.entry_count = Some(100), &["the key of metadata entry 10 is"]);
    let mut older = Builder::llama();
    older.version = 2;
    assert!(older.read().is_ok());
}

/// A file that is cut off anywhere is an error, and never a panic.
#[test]
fn truncated_files() {
    let bytes = Builder::llama().bytes();
    for length in 0..bytes.len() {
        assert_message(bytes[..length].to_vec(), &[]);
    }
}

#[test]
fn metadata() {
    let push = |key: &'static [u8], value: Value| {
        move |builder: &mut Builder| builder.metadata.insert(0, (key.to_vec(), value.clone()))
    };
    rejected(push(b"llama.block_count", u32_value(1)), &["\"llama.block_count\" is stored twice"]);
    rejected(push(b"", u32_value(1)), &["the key of metadata entry 0 is empty"]);
    rejected(push(b"\xff", u32_value(1)), &["the key of metadata entry 0 is not UTF-8"]);
    let long = |builder: &mut Builder| {
        builder.metadata.insert(0, (vec![b'a'; 65_536], u32_value(1)));
    };
    rejected(long, &["the key of metadata entry 0 is 65536 bytes long", "at most 65535"]);
    for code in [13, u32::MAX] {
        let words = ["the type of option \"a\"", &code.to_string(), "0 to 12"];
        rejected(push(b"a", (code, vec![0; 8])), &words);
    }
    rejected(
        push(b"a", (TEXT, HUGE.to_le_bytes().into())),
        &["\"a\" is 9223372036854775808 bytes"],
    );
    for (element, length) in [(U8, HUGE), (U64, HUGE), (U64, 1 << 61), (F32, u64::MAX)] {
        let value = array_of(element, length, &[]);
        rejected(push(b"a", value), &["option \"a\" is", "bytes long", "truncated or damaged"]);
    }
    let value = array_of(TEXT, HUGE, &sized(b"token"));
    rejected(push(b"a", value), &["option \"a\" is", "bytes long"]);
    let value = array_of(TEXT, 2, &[sized(b"token"), u64::MAX.to_le_bytes().into()].concat());
    rejected(push(b"a", value), &["option \"a\" is 18446744073709551615 bytes long"]);
    rejected(push(b"a", array_of(14, 1, &[0])), &["the type of option \"a\" is 14"]);
    let mut nested = array_of(U32, 0, &[]);
    for _ in 0..5 {
        nested = array_of(ARRAY, 1, &nested.1);
    }
    rejected(push(b"a", nested), &["option \"a\"", "many arrays", "at most 4 levels"]);
    rejected(push(b"a", array_of(ARRAY, HUGE, &[])), &["the type of option \"a\""]);
}

#[test]
fn options() {
    for (value, found) in [
        (u32_value(0), "0"),
        (u32_value(24), "24"),
        (text("32"), "\"32\""),
        (u32s(&[32]), "no number"),
        ((U64, (1_u64 << 40).to_le_bytes().into()), "1099511627776"),
    ] {
        option("general.alignment", value, &[found, "a power of two"]);
    }
    rejected(
        |builder| builder.set("general.alignment", u32_value(64)),
        &["the offset of tensor", "a multiple of the alignment, 64"],
    );
    rejected(|builder| builder.remove("general.architecture"), &["architecture\" is absent"]);
    option("general.architecture", u32_value(1), &["expected a string"]);
    option("general.architecture", (TEXT, sized(b"\xff")), &["an invalid string", "UTF-8"]);
    let supported = "\"llama\", \"qwen2\", \"qwen2moe\", \"qwen3\"";
    option("general.architecture", text("mamba"), &["\"mamba\"", supported]);
    option("general.type", text("adapter"), &["\"adapter\"", "supported: \"model\""]);
    for name in [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ] {
        let key = format!("llama.{name}");
        rejected(|builder| builder.remove(&key), &[&format!("\"{key}\" is absent")]);
        option(&key, text("7"), &["is \"7\"", "expected a"]);
        option(&key, u32_value(0), &["is 0", "expected a"]);
        option(&key, (U64, HUGE.to_le_bytes().into()), &["is 9223372036854775808", "expected a"]);
    }
    rejected(
        |builder| builder.remove("llama.vocab_size"),
        &["\"tokenizer.ggml.tokens\" is absent"],
    );
    option("llama.block_count", u32_value(1 << 20), &["a size from 1 to 2048"]);
    option("llama.attention.head_count", u32_value(3), &["a divisor of"]);
    option("llama.attention.head_count_kv", u32_value(3), &["is 3", "a divisor of"]);
    option("llama.attention.head_count_kv", u32s(&[1, 1]), &["each of the 1 layers"]);
    option("llama.attention.head_count_kv", (I32, (-1_i32).to_le_bytes().into()), &["is -1"]);
    option("llama.attention.layer_norm_rms_epsilon", f32_value(-1.0), &["is -1", "positive"]);
    option("llama.attention.layer_norm_rms_epsilon", f32_value(f32::NAN), &["NaN", "positive"]);
    option("llama.rope.freq_base", (F64, 1e300_f64.to_le_bytes().into()), &["inf", "finite"]);
    rejected(
        |builder| builder.set("llama.attention.key_length", u32_value(3)),
        &["the size of a head is 3; expected an even number"],
    );
    option("llama.attention.sliding_window", bool_value(true), &["is true", "an integer"]);
    option("tokenizer.ggml.eos_token_id", u32_value(5), &["is 5", "a token id below 5"]);
    option("tokenizer.ggml.bos_token_id", u32_value(u32::MAX), &["4294967295"]);
}

#[test]
fn options_that_change_the_arithmetic_are_refused_by_name() {
    let cases = [
        ("attention.value_length", u32_value(4), "the size of a head, 2"),
        ("rope.dimension_count", u32_value(1), "the size of a head, 2"),
        ("rope.scaling.type", text("ntk"), "\"none\", \"linear\""),
        ("rope.scaling.type", text("longrope"), "\"none\", \"linear\""),
        ("rope.scaling.attn_factor", f32_value(1.19), "supported: 1"),
        ("rope.scaling.yarn_log_multiplier", f32_value(0.1), "none"),
        ("expert_used_count", u32_value(2), "none"),
        ("nextn_predict_layers", u32_value(1), "none"),
        ("logit_scale", f32_value(16.0), "supported: 1"),
        ("residual_scale", f32_value(0.22), "supported: 1"),
        ("embedding_scale", f32_value(12.0), "supported: 1"),
        ("attn_logit_softcapping", f32_value(50.0), "none"),
        ("final_logit_softcapping", f32_value(30.0), "none"),
        ("attention.scale", f32_value(0.015_625), "1/√head_dim"),
        ("attention.causal", bool_value(false), "true"),
        ("attention.clamp_kqv", f32_value(8.0), "none"),
        ("attention.max_alibi_bias", f32_value(8.0), "none"),
        ("attention.temperature_scale", f32_value(0.1), "none"),
        ("attention.sliding_window_pattern", u32_value(2), "a flag for each layer"),
        ("rope.dimension_sections", u32s(&[1, 1, 0, 0]), "none"),
        ("rope.freq_base_swa", f32_value(500.0), "\"rope.freq_base\""),
        ("use_parallel_residual", bool_value(true), "none"),
        ("pooling_type", u32_value(4), "1 (mean)"),
    ];
    for (name, value, supported) in cases {
        let change = |builder: &mut Builder| {
            builder.set("llama.attention.sliding_window", u32_value(8));
            builder.set(&format!("llama.{name}"), value.clone());
        };
        let key = format!("option \"llama.{name}\" is ");
        rejected(change, &[&key, "not supported yet; supported: ", supported]);
    }
    let two_layers = |builder: &mut Builder| {
        builder.set("llama.block_count", u32_value(2));
        builder.set("llama.attention.head_count_kv", u32s(&[1, 2]));
    };
    let words = ["head_count_kv\" is an array of 2 u32 values", "the same number for all layers"];
    rejected(two_layers, &words);
}

#[test]
fn tensors() {
    const UP: &str = "blk.0.ffn_up.weight";
    let change = |change: &dyn Fn(&mut Stored), words: &[&str]| {
        rejected(|builder| change(builder.tensor(UP)), words);
    };
    change(
        &|up| up.name = vec![b'a'; 65],
        &["the name of tensor 8 is 65 bytes long", "at most 64"],
    );
    change(&|up| up.name = b"\xff".into(), &["the name of tensor 8 is not UTF-8"]);
    change(&|up| up.name = b"output.weight".into(), &["`output.weight` is stored twice"]);
    change(&|up| up.dimensions.clear(), &["dimensions of tensor `blk.0.ffn_up.weight` is 0"]);
    change(&|up| up.dimensions = vec![1; 5], &["is 5; expected 1 to 4"]);
    change(&|up| up.dimensions = vec![4, 0], &["the shape of", "[4, 0]", "above 0"]);
    change(&|up| up.dimensions = vec![HUGE, 2], &["the shape of", "that fit in memory"]);
    change(&|up| up.dimensions = vec![1 << 32; 4], &["the shape of", "that fit in memory"]);
    change(&|up| up.dimensions = vec![4, 5], &["`blk.0.ffn_up.weight` has shape [5, 4]", "[6, 4]"]);
    change(&|up| up.dimensions = vec![24], &["has shape [24]; expected [6, 4]"]);
    change(&|up| up.dimensions = vec![4, 1 << 40], &["the place of", "truncated or damaged"]);
    change(&|up| up.offset = Some(7), &["the offset of", "is 7", "the alignment, 32"]);
    for offset in [HUGE, u64::MAX - 31, 1 << 20] {
        change(&|up| up.offset = Some(offset), &["the place of", &offset.to_string()]);
    }
    change(&|up| up.offset = Some(0), &["the place of tensor", "inside tensor"]);
    change(&|up| up.code = 8, &["the row length of", "is 4", "q8_0 blocks of 32"]);
    for (code, name) in [(41, "Q1_0"), (19, "IQ1_S"), (16, "IQ2_XXS"), (21, "IQ3_S"), (34, "TQ1_0")]
    {
        let words = ["the type of tensor `blk.0.ffn_up.weight`", name, "use a Q4_K_M file"];
        change(&|up| up.code = code, &words);
    }
    for (code, name) in [(24, "I8"), (28, "F64"), (40, "NVFP4"), (31, "Q4_0_4_4")] {
        change(&|up| up.code = code, &[name, "original safetensors"]);
    }
    change(&|up| up.code = 99, &["is 99; expected a type of ggml"]);
    let missing = |builder: &mut Builder| {
        builder.tensors.retain(|tensor| tensor.name != UP.as_bytes());
    };
    rejected(missing, &["`blk.0.ffn_up.weight` is missing", "incomplete"]);
    for (name, dimensions) in [
        ("blk.0.ffn_gate_inp.weight", &[4, 2][..]),
        ("blk.1.attn_norm.weight", &[4]),
        ("blk.0.attn_q_norm.weight", &[2]),
        ("blk.0.attn_k.bias", &[2]),
    ] {
        let words = [name, "is not part of a Llama with 1 layers"];
        rejected(|builder| builder.add(name, dimensions), &words);
    }
    rejected(|builder| builder.add("blk.0.attn_q.bias", &[4]), &["attn_k.bias` is missing"]);
    let vector = |builder: &mut Builder| {
        builder.set("llama.embedding_length", u32_value(32));
        for stored in &mut builder.tensors {
            stored.dimensions[0] = if stored.dimensions[0] == 4 { 32 } else { 6 };
            if stored.name.ends_with(b"attn_output.weight") {
                stored.dimensions[0] = 4;
            }
            if matches!(
                stored.name.split(|byte| *byte == b'.').nth(2),
                Some(b"attn_output" | b"ffn_down")
            ) {
                stored.dimensions[1] = 32;
            }
            let count: u64 = stored.dimensions.iter().product();
            stored.bytes = vec![0; 4 * count as usize];
        }
        builder.set("llama.attention.key_length", u32_value(2));
        let norm = builder.tensor("output_norm.weight");
        (norm.code, norm.bytes) = (8, vec![0; 34]);
    };
    rejected(vector, &["the type of tensor `output_norm.weight` is q8_0", "for a vector"]);
}

#[test]
fn values_of_weights() {
    let with = |value: f32| {
        move |builder: &mut Builder| {
            builder.tensor("blk.0.ffn_up.weight").bytes[28..32]
                .copy_from_slice(&value.to_le_bytes());
        }
    };
    rejected(with(f32::NAN), &["model.layers.0.mlp.up_proj.weight", "NaN", "flat index 7"]);
    rejected(with(f32::INFINITY), &["inf", "flat index 7"]);
}

#[test]
fn divisors_of_frequencies() {
    const NAME: &str = "rope_freqs.weight";
    let divisors = |dimensions: &'static [u64], bytes: &'static [f32]| {
        move |builder: &mut Builder| {
            builder.add(NAME, dimensions);
            builder.tensor(NAME).bytes =
                bytes.iter().flat_map(|value| value.to_le_bytes()).collect();
        }
    };
    rejected(divisors(&[2], &[1.0, 2.0]), &["`rope_freqs.weight` has shape [2]; expected [1]"]);
    for value in [&[0.0][..], &[-1.0], &[f32::NAN], &[f32::INFINITY]] {
        rejected(divisors(&[1], value), &["\"rope_freqs\"", "positive, finite divisors"]);
    }
    let half = |builder: &mut Builder| {
        builder.add(NAME, &[1]);
        let stored = builder.tensor(NAME);
        (stored.code, stored.bytes) = (1, vec![0, 0x3c]);
    };
    rejected(half, &["the type of tensor `rope_freqs.weight` is f16; expected f32"]);
    let both = |builder: &mut Builder| {
        builder.set("llama.rope.scaling.factor", f32_value(2.0));
        divisors(&[1], &[8.0])(builder);
    };
    rejected(both, &["the factor of RoPE's scaling is 2", "not supported yet"]);
}

/// Typed access rejects other types, and names elements that are not valid.
#[test]
fn typed_access() {
    let mut builder = Builder::llama();
    let tokens = [sized(b"a"), sized(b"\xff")].concat();
    builder.set("tokens", array_of(TEXT, 2, &tokens));
    builder.set("scores", array_of(F32, 1, &1.5_f32.to_le_bytes()));
    builder.set("flag", (BOOL, vec![2]));
    builder.set("large", (U64, (1_u64 << 40).to_le_bytes().into()));
    let checkpoint = builder.read().unwrap();
    assert!(checkpoint.tensor(Tensor::Head).is_ok());
    let metadata = checkpoint.gguf().unwrap();
    let scores = metadata.f32s("scores").unwrap().unwrap();
    assert!(scores.eq([1.5]));
    let message = metadata.strings("tokens").map(|_| ()).unwrap_err().to_string();
    assert!(message.contains("element 1 of option \"tokens\" is not valid"), "{message}");
    for result in [
        metadata.text("tokens").map(|_| ()),
        metadata.bool("flag").map(|_| ()),
        metadata.u32("large").map(|_| ()),
        metadata.i32s("scores").map(|_| ()),
        metadata.strings("flag").map(|_| ()),
        metadata.f32("large").map(|_| ()),
    ] {
        let message = result.unwrap_err().to_string();
        assert!(message.starts_with("a.gguf: ") && message.contains("expected"), "{message}");
    }
}
