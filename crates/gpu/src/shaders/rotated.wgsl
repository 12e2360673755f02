// Returns number i of a part of `input` that begins at `first`, whose pairs (i, i + half_rotated) are rotated by the angles
// of a row of `tables`.
fn rotated(first: u32, table: u32, i: u32) -> f32 {
  let half = p.half_rotated;
  let x = input[first + i];
  if (i >= 2u * half) {
    return x;
  }
  let pair = i % half;
  let cosine = tables[table + pair];
  let sine = tables[table + half + pair];
  if (i < half) {
    return x * cosine - input[first + half + i] * sine;
  }
  return x * cosine + input[first + pair] * sine;
}
