// hidden[row] = embedding[token] · factor, plus the embedding of the position if the model has one. A row of the result
// may be the first part of a wider one.
// A workgroup computes a row. A part of the matrix has some tokens; rows of other tokens stay as they are.
struct Parameters {
  quarters: u32, // hidden size / 4
  first_token: u32,
  tokens: u32,
  has_positions: u32,
  first_position: u32,
  factor: f32,
  stride: u32, // quarters of a row of the result
}
var<immediate> p: Parameters;
@group(0) @binding(1) var<storage, read> positions: array<vec4<f32>>; // [rows, hidden]
@group(0) @binding(2) var<storage, read> rows: array<Row>;
@group(0) @binding(3) var<storage, read_write> hidden: array<vec4<f32>>; // [rows, stride]

// Eight successive numbers.
struct Eight {
  a: vec4<f32>,
  b: vec4<f32>,
}

// Returns the eighths of a row of the matrix, of which the last may be half.
fn eighths() -> u32 {
  return (p.quarters + 1u) / 2u;
}

fn store(row: u32, position: u32, quarter: u32, weights: vec4<f32>) {
  var value = weights * p.factor;
  if (p.has_positions == 1u) {
    value = value + positions[(p.first_position + position) * p.quarters + quarter];
  }
  hidden[row * p.stride + quarter] = value;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = rows[group.x];
  let token = row.token - p.first_token;
  if (token >= p.tokens) {
    return;
  }
  for (var i = thread; i < eighths(); i += 64u) {
    let weights = unpack8(read8(token, i), i);
    store(group.x, row.position, i * 2u, weights.a);
    if (i * 2u + 1u < p.quarters) {
      store(group.x, row.position, i * 2u + 1u, weights.b);
    }
  }
}
