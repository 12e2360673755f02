//! What WGSL defines of operations.

use super::open;

const IO: &str = "@group(0) @binding(0) var<storage, read> x: array<u32>;
    @group(0) @binding(1) var<storage, read_write> y: array<u32>;\n";

/// Runs `body`, which writes `count` numbers.
fn run(functions: &str, body: &str, input: &[u32], count: usize) -> Option<Vec<u32>> {
    let source = format!("{IO}{functions} @compute @workgroup_size(1) fn main() {{ {body} }}");
    let opened = open()?;
    let found = opened.run(&source, input, count, 1);
    assert_eq!(opened.errors(), Vec::<String>::new(), "{source}");
    Some(found)
}

#[test]
fn integers_wrap_and_division_by_zero_is_defined() {
    let body = "
        let a = bitcast<i32>(x[0]);
        let b = bitcast<i32>(x[1]);
        y[0] = bitcast<u32>(a + b);
        y[1] = bitcast<u32>(a - b);
        y[2] = bitcast<u32>(a * b);
        y[3] = bitcast<u32>(a / b);
        y[4] = bitcast<u32>(a % b);
        y[5] = x[0] / x[2];
        y[6] = x[0] % x[2];
        y[7] = bitcast<u32>(a / bitcast<i32>(x[2]));
        y[8] = bitcast<u32>(-a);
        y[9] = x[0] << (x[3] & 31u);
        y[10] = bitcast<u32>(a >> 4u);
        y[11] = x[0] >> 4u;
        y[12] = ~x[0];
        y[13] = x[0] / 7u + x[0] % 7u;";
    let (a, b) = (i32::MIN, -1);
    let input = [a as u32, b as u32, 0, 33];
    let Some(found) = run("", body, &input, 14) else { return };
    let expected = [
        a.wrapping_add(b) as u32,
        a.wrapping_sub(b) as u32,
        a.wrapping_mul(b) as u32,
        a as u32,
        0,
        a as u32,
        0,
        a as u32,
        a as u32,
        (a as u32) << 1,
        (a >> 4) as u32,
        a as u32 >> 4,
        !(a as u32),
        a as u32 / 7 + a as u32 % 7,
    ];
    assert_eq!(found, expected);
}

#[test]
fn floats_round_once_and_conversions_saturate() {
    let body = "
        let a = bitcast<f32>(x[0]);
        let b = bitcast<f32>(x[1]);
        y[0] = bitcast<u32>(a * b - b);
        y[1] = bitcast<u32>((a + 12582912.0f) - 12582912.0f);
        y[2] = bitcast<u32>(a / b);
        y[3] = bitcast<u32>(sqrt(a));
        y[4] = bitcast<u32>(fma(a, b, -b));
        y[5] = bitcast<u32>(min(bitcast<f32>(x[2]), 0.0f));
        y[6] = bitcast<u32>(max(bitcast<f32>(x[2]), 0.0f));
        y[7] = u32(bitcast<f32>(x[3]));
        y[8] = u32(-bitcast<f32>(x[3]));
        y[9] = bitcast<u32>(i32(-bitcast<f32>(x[3])));
        y[10] = bitcast<u32>(round(a * 0.5f + 2.0f));
        y[11] = bitcast<u32>(f32(x[4]));
        y[12] = bitcast<u32>(f32(bitcast<i32>(x[4])));
        y[13] = bitcast<u32>(-0.0f);
        y[14] = bitcast<u32>(bitcast<f32>(x[5]) * 0.5f);
        y[15] = bitcast<u32>(abs(-a) + clamp(a, 0.0f, 1.0f));";
    let (a, b, large, many) = (1.0000001_f32, 3.3333335_f32, 1e20_f32, 0xffff_ff81_u32);
    let subnormal = f32::from_bits(7);
    let input = [a.to_bits(), b.to_bits(), (-0.0_f32).to_bits(), large.to_bits(), many, 7];
    let Some(found) = run("", body, &input, 16) else { return };
    let expected = [
        (a * b - b).to_bits(),
        ((a + 12_582_912.0) - 12_582_912.0).to_bits(),
        (a / b).to_bits(),
        a.sqrt().to_bits(),
        a.mul_add(b, -b).to_bits(),
        (-0.0_f32).to_bits(),
        (-0.0_f32).to_bits(),
        u32::MAX,
        0,
        i32::MIN as u32,
        (a * 0.5 + 2.0).round_ties_even().to_bits(),
        (many as f32).to_bits(),
        (many as i32 as f32).to_bits(),
        (-0.0_f32).to_bits(),
        (subnormal * 0.5).to_bits(),
        (a + 1.0).to_bits(),
    ];
    assert_eq!(found, expected);
}

#[test]
fn loops_switches_structures_and_vectors_do_what_they_say() {
    let functions = "
        struct Pair { a: vec4<f32>, b: array<u32, 3> }
        const WEIGHTS: vec4<f32> = vec4<f32>(1.0f, 2.0f, 4.0f, 8.0f);
        var<private> calls: u32;
        fn made(k: u32) -> Pair {
            calls += 1u;
            var pair: Pair;
            pair.a = vec4<f32>(f32(k)) * WEIGHTS;
            pair.b[k] = k + 5u;
            return pair;
        }
        fn named(k: u32) -> u32 {
            switch k {
                case 0u, 1u: { return 10u; }
                case 2u: { if (calls > 100u) { break; } return 20u; }
                default: { }
            }
            return 30u;
        }";
    let body = "
        var sum = 0u;
        for (var i = 0u; i < 10u; i += 1u) {
            if (i % 3u == 1u) { continue; }
            if (i == 9u) { break; }
            var fresh: u32;
            fresh += i;
            sum += fresh;
        }
        y[0] = sum;
        var n = 0u;
        loop {
            n += 1u;
            if (n == 3u) { continue; }
            sum += n;
            continuing { sum += 100u; break if n >= 5u; }
        }
        y[1] = sum;
        let pair = made(2u);
        y[2] = u32(pair.a.y + pair.a.w);
        y[3] = pair.b[2] + pair.b[0] + made(1u).b[1];
        y[4] = calls;
        y[5] = named(0u) + named(2u) + named(7u);
        let v = vec4<u32>(3u, 1u, 4u, 1u);
        y[6] = v[x[0]] * 10u + v.zx.y;
        let chosen = select(vec2<u32>(1u, 2u), vec2<u32>(3u, 4u), v.xy > vec2<u32>(2u));
        y[7] = chosen.x * 10u + chosen.y;
        var inner = array<array<u32, 2>, 2>(array<u32, 2>(1u, 2u), array<u32, 2>(3u, 4u));
        inner[x[1]][1] += 5u;
        y[8] = inner[1][1] * 10u + inner[0][x[1]];";
    let Some(found) = run(functions, body, &[2, 1], 9) else { return };
    let sum = [0_u32, 2, 3, 5, 6, 8].into_iter().sum::<u32>();
    let expected = [sum, sum + 1 + 2 + 4 + 5 + 500, 20, 13, 2, 60, 43, 32, 92];
    assert_eq!(found, expected);
}

#[test]
fn the_end_of_a_loop_is_there_for_every_continue() {
    let body = "
        var i = 0u;
        var sum = 0u;
        loop {
            sum += i;
            switch i { case 1u: { continue; } default: { } }
            sum += 10u;
            if (i > 5u) { break; }
            continue;
            continuing { let next = i + 1u; i = next; }
        }
        y[0] = sum;
        var n = 0u;
        loop {
            if (x[n] == 7u) { continue; }
            y[1] += 1u;
            continue;
            continuing { let next = n + 1u; n = next; break if next == 4u; }
        }
        let both = vec2<bool>(x[0] == 7u, x[1] == 7u) & vec2<bool>(true, true);
        let one = both | vec2<bool>(false, true);
        y[2] = u32(both.x) * 8u + u32(both.y) * 4u + u32(one.x) * 2u + u32(one.y);";
    let Some(found) = run("", body, &[7, 3, 7, 3], 3) else { return };
    assert_eq!(found, [21 + 60, 2, 8 + 2 + 1]);
}

#[test]
fn threads_share_memory_and_see_where_they_are() {
    let source = format!(
        "struct Parameters {{ scale: u32, offset: u32 }}
        var<immediate> p: Parameters;
        var<workgroup> shared_numbers: array<u32, 64>;
        {IO}
        @compute @workgroup_size(64)
        fn main(
            @builtin(workgroup_id) group: vec3<u32>,
            @builtin(local_invocation_index) thread: u32,
            @builtin(global_invocation_id) at: vec3<u32>,
            @builtin(num_workgroups) groups: vec3<u32>
        ) {{
            shared_numbers[thread] = x[at.x] * p.scale;
            workgroupBarrier();
            for (var half = 32u; half > 0u; half = half >> 1u) {{
                if (thread < half) {{
                    shared_numbers[thread] += shared_numbers[thread + half];
                }}
                workgroupBarrier();
            }}
            y[at.x] = shared_numbers[0] + shared_numbers[63u - thread] * 0u + p.offset + groups.x + group.x;
        }}"
    );
    let Some(opened) = open() else { return };
    let input: Vec<u32> = (0..192).collect();
    let found = opened.read(&opened.submit(&source, &input, 192, 3, &[3, 7]));
    let expected = (0..192_u32).map(|i| {
        let group = i / 64;
        (0..64).map(|thread| (group * 64 + thread) * 3).sum::<u32>() + 7 + 3 + group
    });
    assert_eq!(found, expected.collect::<Vec<_>>());
    assert_eq!(opened.errors(), Vec::<String>::new());
}

#[test]
fn what_is_not_translated_is_named() {
    let error = |source: &str| crate::translate(source).unwrap_err().to_string();
    let kernel = |body: &str| format!("{IO} @compute @workgroup_size(1) fn main() {{ {body} }}");
    let of_elements = |types: &str, element: &str| {
        format!(
            "{types} @group(0) @binding(0) var<storage, read_write> y: array<{element}>;
            @compute @workgroup_size(1) fn main() {{ let a = y[1]; y[0] = a; }}"
        )
    };
    for (source, words) in [
        (kernel("y[0] = countOneBits(x[0]);"), "CountOneBits"),
        (kernel("y[0] = arrayLength(&x);"), "ArrayLength"),
        (kernel("y[0] = bitcast<u32>(exp(1.5f * f32(x[0])));"), "Exp"),
        (
            format!("{IO} @compute @workgroup_size(8, 8) fn main() {{ y[0] = x[0]; }}"),
            "several dimensions",
        ),
        (format!("{IO} fn f() {{}}"), "entry point"),
        (kernel("let v = vec2<f32>(); y[0] = u32(dot(v, v));"), "Dot"),
        (kernel("var v = vec4<u32>(); v[x[0]] = 1u; y[0] = v.x;"), "a component that is written"),
        (kernel("let v = vec3<u32>(); y[0] = v[x[0]];"), "an index that is not constant of"),
        (kernel("let v = vec2<bool>(); y[0] = u32(v[x[0]]);"), "an index that is not constant of"),
        (
            kernel(
                "var i = 0u;
                loop {
                    switch i { case 1u: { continue; } default: { } }
                    y[i] = x[i];
                    continuing { i += 1u; break if i > 2u; }
                }",
            ),
            "`continue` in a `switch`",
        ),
        (of_elements("", "vec3<f32>"), "an array with elements at multiples of 16 bytes"),
        (of_elements("", "array<u32, 2>"), "a buffer of arrays"),
        (
            of_elements("struct Odd { a: u32, b: vec3<f32> }", "Odd"),
            "a structure with m1_b whose layout in C++ is another one",
        ),
        (
            of_elements("struct Odd { a: vec2<f32>, @size(16) b: u32 }", "Odd"),
            "a structure of 24 bytes",
        ),
        (
            of_elements("struct Odd { a: array<vec3<u32>, 2> }", "Odd"),
            "an array with elements at multiples of 16 bytes",
        ),
    ] {
        let error = error(&source);
        assert!(error.contains(words), "{error}");
    }
    assert!(error("fn main() { x }").starts_with("not valid WGSL"));
}
