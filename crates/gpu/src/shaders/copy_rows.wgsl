// Copies rows of the cache, one after another: a thread copies its word of all of them.
struct Parameters {
  words: u32, // of a row
  copies: u32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> copies: array<vec2<u32>>; // [copies]: from, to
@group(0) @binding(1) var<storage, read_write> cache: array<u32>; // [places, words]

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let word = group.x * 64u + thread;
  if (word < p.words) {
    for (var i = 0u; i < p.copies; i += 1u) {
      cache[copies[i].y * p.words + word] = cache[copies[i].x * p.words + word];
    }
  }
}
