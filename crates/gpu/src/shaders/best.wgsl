// Selects the best candidates of a row, best first. A workgroup selects from a slice of them. The next step selects from the
// results of all slices, until there is one slice. The first step's candidates are all tokens with their logits.
//
// Order: a candidate comes before another one if its logit is larger, or equal and its token is lower. The two zeros are equal.
// A logit that is NaN or infinite comes before all others, so the first one of a row is found. Logits are compared as integers,
// so no driver changes the order or the bits.
struct Parameters {
  candidates: u32, // of a row, at least one
  count: u32, // the number of results of a slice
  reads_logits: u32, // whether the candidates are logits
  first: u32, // the number of the first candidate
  stride: u32, // candidates from a row to the next one
  slices: u32,
  to: u32, // the number of the first result
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> logits: array<u32>; // [rows, stride]
@group(0) @binding(1) var<storage, read_write> best: array<vec2<u32>>; // tokens, and the bits of their logits

// Stands for no token. Slices with fewer candidates than results end with it.
const NO_TOKEN: u32 = 0xffffffffu;

// Candidates of a thread, 256 apart. Their loops have no other end, so that compilers unroll them and keep the candidates in
// registers.
const OWN: u32 = SLICE / 256u;

struct Candidate {
  key: u32,
  token: u32,
  bits: u32,
}

var<private> own: array<Candidate, OWN>;
var<workgroup> keys: array<u32, 256>;
var<workgroup> tokens: array<u32, 256>;

// An integer in the order of logits.
fn key_of(bits: u32) -> u32 {
  if ((bits & 0x7f800000u) == 0x7f800000u) {
    return 0xffffffffu;
  }
  if ((bits & 0x7fffffffu) == 0u) {
    return 0x80000000u;
  }
  return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

fn comes_before(key: u32, token: u32, other_key: u32, other: u32) -> bool {
  return key > other_key || (key == other_key && token < other);
}

// Reads a thread's candidates. After the end of the slice there are none.
fn read_own(row: u32, start: u32, end: u32) {
  for (var j = 0u; j < OWN; j += 1u) {
    let i = start + j * 256u;
    let at = row + min(i, p.candidates - 1u);
    var read = vec2<u32>(i, 0u);
    if (p.reads_logits != 0u) {
      read.y = logits[at];
    } else {
      read = best[at];
    }
    let token = select(NO_TOKEN, read.x, i < end);
    own[j] = Candidate(select(key_of(read.y), 0u, token == NO_TOKEN), token, read.y);
  }
}

// Returns the best of a thread's candidates, or the best of those that come after the last one it had.
fn next_best(last: Candidate, is_first: bool) -> Candidate {
  var found = Candidate(0u, NO_TOKEN, 0u);
  for (var j = 0u; j < OWN; j += 1u) {
    let next = own[j];
    let is_left = is_first || comes_before(last.key, last.token, next.key, next.token);
    if (is_left && comes_before(next.key, next.token, found.key, found.token)) {
      found = next;
    }
  }
  return found;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let start = group.x * SLICE;
  let to = p.to + (group.y * p.slices + group.x) * p.count;
  read_own(p.first + group.y * p.stride, start + thread, min(start + SLICE, p.candidates));
  var offered = next_best(Candidate(0u, 0u, 0u), true);
  for (var n = 0u; n < p.count; n += 1u) {
    keys[thread] = offered.key;
    tokens[thread] = offered.token;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half >> 1u) {
      if (thread < half) {
        let other = thread + half;
        if (comes_before(keys[other], tokens[other], keys[thread], tokens[thread])) {
          keys[thread] = keys[other];
          tokens[thread] = tokens[other];
        }
      }
      workgroupBarrier();
    }
    let token = tokens[0];
    workgroupBarrier();
    // A token belongs to one thread, and no token to all.
    if (offered.token == token && (token != NO_TOKEN || thread == 0u)) {
      best[to + n] = vec2<u32>(token, offered.bits);
      offered = next_best(offered, false);
    }
  }
}
