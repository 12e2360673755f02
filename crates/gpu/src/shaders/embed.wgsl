// hidden[row] = embedding[token] · factor, plus the embedding of the position if the model has one.
// A workgroup computes a row. A part of the matrix has some tokens; rows of other tokens stay as they are.
struct Parameters {
  quarters: u32, // hidden size / 4
  first_token: u32,
  tokens: u32,
  has_positions: u32,
  first_position: u32,
  factor: f32,
}
var<immediate> p: Parameters;
@group(0) @binding(1) var<storage, read> positions: array<vec4<f32>>; // [rows, hidden]
@group(0) @binding(2) var<storage, read> rows: array<Row>;
@group(0) @binding(3) var<storage, read_write> hidden: array<vec4<f32>>; // [rows, hidden]

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row = rows[group.x];
  let token = row.token - p.first_token;
  if (token >= p.tokens) {
    return;
  }
  for (var i = thread; i < p.quarters; i += 64u) {
    var value = weights4(token, i) * p.factor;
    if (p.has_positions == 1u) {
      value = value + positions[(p.first_position + row.position) * p.quarters + i];
    }
    hidden[group.x * p.quarters + i] = value;
  }
}
