// What a pass knows of a row. `rows.rs` writes it.
struct Row {
  token: u32,
  // The position in its sequence.
  position: u32,
  // Where the sequence's page table begins in `places`.
  table: u32,
  // So many leading positions of the row's path are slots of the same number.
  chain: u32,
  // Where the places of the later positions begin in `places`.
  rest: u32,
  // Where the row's own keys and values are: page · 64 + row.
  place: u32,
  // The pass's row that is the output with this row's number.
  output: u32,
  // The position after the last row of the row's block, if the model drafts blocks.
  block_end: u32,
  // The number of rows before it in its block.
  in_block: u32,
}
