// y[row] = weights · x[row] + bias, or y[row] += (weights · x[row] + bias) · factor; with several heads, each has its own
// weights, and its own part of x and y.
// A workgroup has THREADS threads. A team computes OUTPUTS outputs for ROWS rows, and reads DEPTH eighths of each output at
// once. The order of additions is always that of product.wgsl. SHARES_INPUTS says whether the teams of a workgroup read inputs together, and weights ahead of them. With few rows of
// weights that are cheap to unpack, it is faster if each thread reads what it needs.
struct Parameters {
  quarters: u32, // inputs / 4
  outputs: u32, // of a head
  // In quarters: the first one, those of a row, and those of a head.
  x_offset: u32,
  x_stride: u32,
  x_head: u32,
  y_offset: u32,
  y_stride: u32,
  y_head: u32,
  rows: u32,
  // 1: there is a bias. 2: add to y.
  flags: u32,
  factor: f32,
}
var<immediate> p: Parameters;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>; // [rows, x_stride]
@group(0) @binding(2) var<storage, read> bias: array<f32>; // [outputs]
@group(0) @binding(3) var<storage, read_write> y: array<f32>; // [rows, y_stride]

// The inputs of a chunk: [row, eighths / 32, half of an eighth, eighth].
var<workgroup> inputs: array<vec4<f32>, select(1u, ROWS * CHUNK * 64u, SHARES_INPUTS)>;

// Reads the chunk of inputs from an eighth on. Those after the end of a row are zero. Rows after the last one repeat it,
// and are not written.
fn read_inputs(thread: u32, first: u32, first_x: u32, first_row: u32) {
  workgroupBarrier();
  for (var n = thread; n < ROWS * CHUNK * 64u; n += THREADS) {
    let row = min(first_row + n / (CHUNK * 64u), p.rows - 1u);
    let quarter = first * 2u + n % (CHUNK * 64u);
    let read = x[first_x + row * p.x_stride + min(quarter, p.quarters - 1u)];
    inputs[n / 64u * 64u + n % 2u * 32u + n % 64u / 2u] = select(vec4<f32>(0.0f), read, quarter < p.quarters);
  }
  workgroupBarrier();
}

// Returns eight successive inputs of a row. Rows after the last one repeat it, and are not written.
fn inputs8(first_x: u32, row: u32, eighth: u32) -> Eight {
  return eight_of(first_x + min(row, p.rows - 1u) * p.x_stride, eighth * 2u);
}

// Returns eight successive weights of an output. Outputs after the last one repeat it, and are not written.
fn stored8(head: u32, output: u32, eighth: u32) -> Stored {
  return read8(head * p.outputs + min(output, p.outputs - 1u), eighth);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread % 32u;
  let team = thread / 32u;
  let first_output = (group.y * TEAMS + team) * OUTPUTS;
  let first_row = group.x * ROWS;
  let first_x = p.x_offset + group.z * p.x_head;
  let first_y = p.y_offset + group.z * p.y_head;
  var sums: array<f32, ROWS * OUTPUTS>; // [row, output]
  for (var s = 0u; s < ROWS * OUTPUTS; s += 1u) {
    sums[s] = 0.0f;
  }
  let end = eighths();
  if (SHARES_INPUTS) {
    // The next weights are read while these are used. Past the end, the last eighth is read again, and not used.
    var stored: array<Stored, DEPTH * OUTPUTS>; // [depth, output]
    for (var d = 0u; d < DEPTH; d += 1u) {
      for (var o = 0u; o < OUTPUTS; o += 1u) {
        stored[d * OUTPUTS + o] = stored8(group.z, first_output + o, min(lane + 32u * d, end - 1u));
      }
    }
    for (var first = 0u; first < end; first += 32u * DEPTH) {
      if (first % (32u * CHUNK) == 0u) {
        read_inputs(thread, first, first_x, first_row);
      }
      var next: array<Stored, DEPTH * OUTPUTS>;
      for (var d = 0u; d < DEPTH; d += 1u) {
        for (var o = 0u; o < OUTPUTS; o += 1u) {
          let eighth = first + 32u * (DEPTH + d) + lane;
          next[d * OUTPUTS + o] = stored8(group.z, first_output + o, min(eighth, end - 1u));
        }
      }
      for (var d = 0u; d < DEPTH; d += 1u) {
        let eighth = first + 32u * d + lane;
        if (eighth < end) {
          var w: array<Eight, OUTPUTS>;
          for (var o = 0u; o < OUTPUTS; o += 1u) {
            w[o] = unpack8(stored[d * OUTPUTS + o], eighth);
          }
          for (var r = 0u; r < ROWS; r += 1u) {
            let at = (r * CHUNK + (first / 32u + d) % CHUNK) * 64u + lane;
            let v = Eight(inputs[at], inputs[at + 32u]);
            for (var o = 0u; o < OUTPUTS; o += 1u) {
              sums[r * OUTPUTS + o] = add_products(sums[r * OUTPUTS + o], v, w[o]);
            }
          }
        }
      }
      stored = next;
    }
  } else {
    var i = lane;
    // Several reads of weights are in progress at once.
    while (i + 32u * (DEPTH - 1u) < end) {
      var w: array<Eight, DEPTH * OUTPUTS>;
      for (var d = 0u; d < DEPTH; d += 1u) {
        for (var o = 0u; o < OUTPUTS; o += 1u) {
          let eighth = i + 32u * d;
          w[d * OUTPUTS + o] = unpack8(stored8(group.z, first_output + o, eighth), eighth);
        }
      }
      for (var d = 0u; d < DEPTH; d += 1u) {
        for (var r = 0u; r < ROWS; r += 1u) {
          let v = inputs8(first_x, first_row + r, i + 32u * d);
          for (var o = 0u; o < OUTPUTS; o += 1u) {
            let s = r * OUTPUTS + o;
            sums[s] = add_products(sums[s], v, w[d * OUTPUTS + o]);
          }
        }
      }
      i += 32u * DEPTH;
    }
    while (i < end) {
      for (var o = 0u; o < OUTPUTS; o += 1u) {
        let w = unpack8(stored8(group.z, first_output + o, i), i);
        for (var r = 0u; r < ROWS; r += 1u) {
          let s = r * OUTPUTS + o;
          sums[s] = add_products(sums[s], inputs8(first_x, first_row + r, i), w);
        }
      }
      i += 32u;
    }
  }
  for (var o = 0u; o < OUTPUTS; o += 1u) {
    for (var first = 0u; first < ROWS; first += PARTIAL_ROWS) {
      workgroupBarrier();
      for (var r = 0u; r < PARTIAL_ROWS; r += 1u) {
        partial[(r * TEAMS + team) * STRIDE + lane] = sums[(first + r) * OUTPUTS + o];
      }
      workgroupBarrier();
      // Each result is added up by one thread.
      let row = first_row + first + thread / TEAMS;
      let result = (group.y * TEAMS + thread % TEAMS) * OUTPUTS + o;
      if (thread < PARTIAL_ROWS * TEAMS && row < p.rows && result < p.outputs) {
        var value = total(thread);
        if ((p.flags & 1u) != 0u) {
          value = value + bias[result];
        }
        let at = first_y + row * p.y_stride + result;
        if ((p.flags & 2u) != 0u) {
          value = y[at] + value * p.factor;
        }
        y[at] = value;
      }
    }
  }
}
