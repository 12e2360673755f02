//! Tensor cores: kernels in CUDA C.

use super::open_with_order;

/// Multiplies 16 rows by 8 columns of 16 numbers, two of bf16 in a word: rows, and then columns.
/// Fragments are those of the PTX ISA, "Matrix Fragments for mma.m16n8k16".
const MULTIPLY: &str = "
KERNEL(32) kernel(READS(u32, x), WRITES(float, y)) {
  u32 lane = threadIdx.x, group = lane / 4, own = lane % 4;
  u32 a[4], b[2];
  for (u32 i = 0; i < 4; i++) a[i] = x[(group + i % 2 * 8) * 8 + own + i / 2 * 4];
  for (u32 i = 0; i < 2; i++) b[i] = x[128 + group * 8 + own + i * 4];
  float c[4];
  for (u32 i = 0; i < 4; i++) c[i] = i;
  if (lane < LANES) MULTIPLY_BF16(c, a, b);
  for (u32 i = 0; i < 4; i++) y[(group + i / 2 * 8) * 8 + own * 2 + i % 2] = c[i];
}
EMULATED(32, true, spoil_nothing, kernel(ELEMENTS(const u32, 0), ELEMENTS(float, 1)))
";

/// Rows and columns, in this order, of 16 numbers.
type Numbers = [[f32; 16]; 24];

/// Returns the products of the numbers as bf16, and what went wrong, on tensor cores with an order.
fn multiply(numbers: &Numbers, order: u32, lanes: u32) -> Option<(Vec<f32>, Vec<String>)> {
    let opened = open_with_order(order)?;
    let word = |pair: &[f32]| (pair[0].to_bits() >> 16) | (pair[1].to_bits() & 0xffff_0000);
    let words: Vec<u32> = numbers.iter().flat_map(|row| row.chunks(2).map(word)).collect();
    let source = format!("constexpr u32 LANES = {lanes};{MULTIPLY}");
    let found = opened.submit(&source, &words, 128, 1, &[]);
    let errors = opened.errors();
    let bits = if errors.is_empty() { opened.read(&found) } else { Vec::new() };
    Some((bits.into_iter().map(f32::from_bits).collect(), errors))
}

/// Returns numbers that are exact in bf16.
fn random(mut number: impl FnMut(u32) -> f32) -> Numbers {
    let mut state = 7_u32;
    [[(); 16]; 24].map(|row| {
        row.map(|()| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            number(state >> 8)
        })
    })
}

#[test]
fn fragments_are_where_ptx_has_them() {
    let numbers = random(|state| (state % 31) as f32 - 15.0);
    let (rows, columns) = numbers.split_at(16);
    let expected = rows.iter().enumerate().flat_map(|(row, a)| {
        columns.iter().enumerate().map(move |(column, b)| {
            let before = (row / 8 * 2 + column % 2) as f32;
            a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>() + before
        })
    });
    for order in [0, 7] {
        let Some((found, errors)) = multiply(&numbers, order, 32) else { return };
        assert_eq!(errors, Vec::<String>::new());
        assert!(expected.clone().eq(found));
    }
}

/// Another order changes bits. Equal columns have equal bits unless the order says otherwise.
#[test]
fn orders_of_additions_change_bits() {
    let mut numbers = random(|state| f32::from_bits(0x3800_0000 | ((state << 16) & 0x877f_0000)));
    let column = numbers[16];
    numbers[16..].fill(column);
    let products = |order| multiply(&numbers, order, 32).map(|(found, _)| found);
    let Some(usual) = products(0) else { return };
    let is_equal = |found: &[f32]| found.chunks(8).all(|row| row[2] == row[0] && row[6] == row[0]);
    let other = products(7).unwrap();
    assert!(is_equal(&usual) && is_equal(&other));
    assert_ne!(usual, other);
    assert!(!is_equal(&products(1 << 31).unwrap()));
}

#[test]
fn a_warp_that_does_not_multiply_together_is_a_fault() {
    let Some((_, errors)) = multiply(&random(|_| 1.0), 0, 31) else { return };
    assert!(errors[0].contains("not all lanes of a warp multiply"), "{errors:?}");
}
