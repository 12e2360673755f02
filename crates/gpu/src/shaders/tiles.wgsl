// Collects the rows of each expert in tiles, so that a product reads an expert once for the rows of a tile. A choice is
// row · chosen + i: the row's expert i. There is one workgroup.
struct Parameters {
  experts: u32,
  choices: u32, // rows · chosen
  tile: u32, // choices of a tile
  tiles: u32, // at most
  layer: u32,
}
var<immediate> p: Parameters;
@group(0) @binding(0) var<storage, read> choices: array<vec2<u32>>; // [rows, chosen]: an expert, and its weight
@group(0) @binding(1) var<storage, read_write> members: array<u32>; // [choices], in order of experts and then of rows
@group(0) @binding(2) var<storage, read_write> tiles: array<vec4<u32>>; // [tiles]: expert, first member, members (0: unused)
@group(0) @binding(3) var<storage, read_write> loads: array<u32>; // [layers]: experts that some row has chosen

var<workgroup> counts: array<u32, MAX_EXPERTS>;
var<workgroup> first_members: array<u32, MAX_EXPERTS>;
var<workgroup> first_tiles: array<u32, MAX_EXPERTS>;
var<workgroup> used_tiles: u32;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) thread: u32) {
  for (var e = thread; e < p.experts; e += 64u) {
    var count = 0u;
    for (var i = 0u; i < p.choices; i += 1u) {
      count += select(0u, 1u, choices[i].x == e);
    }
    counts[e] = count;
  }
  workgroupBarrier();
  if (thread == 0u) {
    var member = 0u;
    var tile = 0u;
    var distinct = 0u;
    for (var e = 0u; e < p.experts; e += 1u) {
      first_members[e] = member;
      first_tiles[e] = tile;
      member += counts[e];
      tile += (counts[e] + p.tile - 1u) / p.tile;
      distinct += min(counts[e], 1u);
    }
    used_tiles = tile;
    loads[p.layer] = distinct;
  }
  workgroupBarrier();
  for (var e = thread; e < p.experts; e += 64u) {
    let count = counts[e];
    if (count > 0u) {
      var member = first_members[e];
      for (var i = 0u; i < p.choices; i += 1u) {
        if (choices[i].x == e) {
          members[member] = i;
          member += 1u;
        }
      }
    }
    for (var done = 0u; done < count; done += p.tile) {
      let length = min(count - done, p.tile);
      tiles[first_tiles[e] + done / p.tile] = vec4<u32>(e, first_members[e] + done, length, 0u);
    }
  }
  for (var t = used_tiles + thread; t < p.tiles; t += 64u) {
    tiles[t] = vec4<u32>(0u);
  }
}
