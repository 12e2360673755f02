// output[row] = Σ_t (base[t] + own[row][t]) · input[row − t], over the rows of a block. Rows before the block are zeros, and all
// channels of a group share the row's own numbers.
//
// Order of additions: ascending t.
struct Parameters {
  width: u32, // channels
  taps: u32,
  group_size: u32,
  half: u32, // 0: the convolution before attention or the MLP. 1: the one after it.
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> input: array<f32>; // [rows, width]
@group(0) @binding(1) var<storage, read> base: array<f32>; // [2, taps, width]
@group(0) @binding(2) var<storage, read> own: array<f32>; // [rows, 2, taps, groups]
@group(0) @binding(3) var<storage, read> rows: array<Row>;
@group(0) @binding(4) var<storage, read_write> output: array<f32>; // [rows, width]

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let i = group.x * 64u + thread;
  let row = group.y;
  if (i >= p.width) {
    return;
  }
  let groups = p.width / p.group_size;
  let last = min(p.taps - 1u, rows[row].in_block);
  var sum = 0.0f;
  for (var t = 0u; t <= last; t += 1u) {
    let kernel = base[(p.half * p.taps + t) * p.width + i]
      + own[((row * 2u + p.half) * p.taps + t) * groups + i / p.group_size];
    let product = kernel * input[(row - t) * p.width + i];
    sum = select(sum + product, product, t == 0u);
  }
  output[row * p.width + i] = sum;
}
