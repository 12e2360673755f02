// Reads a buffer, to measure the bandwidth of memory. Each thread writes a number that depends on all that it has read.
struct Parameters {
  vectors: u32, // of the buffer
  threads: u32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> input: array<vec4<u32>>; // [vectors]
@group(0) @binding(1) var<storage, read_write> output: array<u32>; // [threads]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
  var all = vec4<u32>(0u);
  var i = at.x;
  while (i + 3u * p.threads < p.vectors) {
    let a = input[i];
    let b = input[i + p.threads];
    let c = input[i + 2u * p.threads];
    let d = input[i + 3u * p.threads];
    all ^= a ^ b ^ c ^ d;
    i += 4u * p.threads;
  }
  while (i < p.vectors) {
    all ^= input[i];
    i += p.threads;
  }
  output[at.x] = all.x ^ all.y ^ all.z ^ all.w;
}
