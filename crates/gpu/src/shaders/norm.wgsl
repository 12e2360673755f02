// output[row] = norm(input[row]), or output[row] += norm(input[row]) · factor. A workgroup computes a row. Rows may be parts
// of wider ones, and successive rows may have weights of their own, by turns.
//
// Order of additions: number i belongs to partial sum i mod 256. Then the upper half of the partial sums is added
// to the lower half until one is left.
struct Parameters {
  width: u32,
  // 1: the mean is subtracted. 2: there are weights. 4: there is a bias. 8: add to the output.
  // 16: read the rows that are outputs, from `first_output` on.
  flags: u32,
  epsilon: f32,
  factor: f32,
  first_output: u32,
  first_row: u32, // the row of the first workgroup
  input_stride: u32, // numbers from a row to the next one
  output_start: u32, // the first number of a row
  output_stride: u32,
  weight_rows: u32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> input: array<f32>; // [rows, input_stride]
@group(0) @binding(1) var<storage, read> weights: array<f32>; // [weight_rows, width]
@group(0) @binding(2) var<storage, read> bias: array<f32>; // [width]
@group(0) @binding(3) var<storage, read> rows: array<Row>;
@group(0) @binding(4) var<storage, read_write> output: array<f32>; // [rows, output_stride]

// Numbers that a thread reads at once, 256 apart. Their loops have no other end, so that compilers unroll them and keep
// the numbers in registers.
const AT_ONCE: u32 = 8u;

// Returns numbers that a thread adds up one after another. After the end of the row they repeat the last one.
fn inputs(first: u32, start: u32) -> array<f32, AT_ONCE> {
  var read: array<f32, AT_ONCE>;
  for (var j = 0u; j < AT_ONCE; j += 1u) {
    read[j] = input[first + min(start + j * 256u, p.width - 1u)];
  }
  return read;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  var row = p.first_row + group.x;
  let out = p.output_start + row * p.output_stride;
  let first_weight = row % p.weight_rows * p.width;
  if ((p.flags & 16u) != 0u) {
    row = rows[p.first_output + group.x].output;
  }
  let first = row * p.input_stride;
  var mean = 0.0f;
  if ((p.flags & 1u) != 0u) {
    var sum = 0.0f;
    for (var start = thread; start < p.width; start += 256u * AT_ONCE) {
      let read = inputs(first, start);
      for (var j = 0u; j < AT_ONCE; j += 1u) {
        sum = select(sum, sum + read[j], start + j * 256u < p.width);
      }
    }
    mean = divide(tree_sum(thread, sum), f32(p.width));
  }
  var squares = 0.0f;
  for (var start = thread; start < p.width; start += 256u * AT_ONCE) {
    let read = inputs(first, start);
    for (var j = 0u; j < AT_ONCE; j += 1u) {
      let x = read[j] - mean;
      squares = select(squares, squares + x * x, start + j * 256u < p.width);
    }
  }
  let square = divide(tree_sum(thread, squares), f32(p.width));
  let scale = divide(1.0f, square_root(square + p.epsilon));
  for (var start = thread; start < p.width; start += 256u * AT_ONCE) {
    var read = inputs(first, start);
    for (var j = 0u; j < AT_ONCE; j += 1u) {
      let i = min(start + j * 256u, p.width - 1u);
      read[j] = (read[j] - mean) * scale;
      if ((p.flags & 2u) != 0u) {
        read[j] = read[j] * weights[first_weight + i];
      }
      if ((p.flags & 4u) != 0u) {
        read[j] = read[j] + bias[i];
      }
      if ((p.flags & 8u) != 0u) {
        read[j] = output[out + i] + read[j] * p.factor;
      }
    }
    // Writes come after all reads: a driver cannot know that they are of other numbers.
    for (var j = 0u; j < AT_ONCE; j += 1u) {
      if (start + j * 256u < p.width) {
        output[out + start + j * 256u] = read[j];
      }
    }
  }
}
