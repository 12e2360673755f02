// An answer as it arrives: its tokens, its rounds, and in the end the server's measurements.

/** The time over which the present speed is measured, in milliseconds. */
const SPEED_WINDOW = 1000;

export class Answer {
  constructor(method) {
    this.method = method;
    this.startedAt = performance.now();
    this.text = "";
    this.tokens = [];
    /** By number. Times are those at which the round's first token arrived. */
    this.rounds = [];
    this.finishReason = null;
    /** The server's measurements, once the answer is complete. */
    this.measured = null;
    this.usage = null;
    this.leftOut = 0;
  }

  get isPlain() {
    return this.method === "autoregressive";
  }

  /** Adds a chunk of the stream. Returns its tokens. */
  add(chunk) {
    const now = performance.now();
    this.leftOut = chunk.leftOut;
    if (chunk.forerun) this.measured = chunk.forerun.choices[0];
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) return [];
    this.finishReason = choice.finish_reason ?? this.finishReason;
    const content = choice.delta.content ?? "";
    const alternatives = choice.logprobs?.content ?? [];
    const tokens = (choice.forerun?.tokens ?? []).map((token, index) => ({
      ...token,
      at: now,
      alternatives: alternatives[index]?.top_logprobs ?? [],
    }));
    // Text without a token of its own was held back because a stop string may have begun.
    const rest = content.slice(tokens.map((token) => token.text).join("").length);
    if (rest && tokens.length > 0) tokens.at(-1).text += rest;
    else if (rest) tokens.push({ text: rest, at: now, alternatives: [] });
    this.text += content;
    for (const token of tokens) {
      this.tokens.push(token);
      if (token.round !== undefined) this.#count(token);
    }
    return tokens;
  }

  #count(token) {
    const round = (this.rounds[token.round] ??= { at: token.at, accepted: 0, committed: 0, rejected: false });
    round.committed += 1;
    round.accepted += token.origin === "draft" ? 1 : 0;
    round.rejected ||= token.origin === "correction";
  }

  /** The rounds that committed tokens. */
  get committedRounds() {
    return this.rounds.filter((round) => round !== undefined);
  }

  get meanAcceptedTokens() {
    if (this.measured) return this.measured.mean_accepted_tokens;
    const rounds = this.committedRounds;
    return rounds.length === 0 ? 0 : rounds.reduce((sum, round) => sum + round.committed, 0) / rounds.length;
  }

  get roundCount() {
    return this.measured ? this.measured.target_forwards : this.committedRounds.length;
  }

  /** How often the draft token at each position was tested and accepted. */
  get positions() {
    if (this.measured) {
      const { tested_by_position: tested, accepted_by_position: accepted } = this.measured;
      return tested.map((count, index) => ({ tested: count, accepted: accepted[index] }));
    }
    const positions = [];
    for (const { accepted, rejected } of this.committedRounds) {
      for (let index = 0; index < accepted + (rejected ? 1 : 0); index += 1) {
        const position = (positions[index] ??= { tested: 0, accepted: 0 });
        position.tested += 1;
        position.accepted += index < accepted ? 1 : 0;
      }
    }
    return positions;
  }

  /** Tokens per second: those of the last second, or of the whole answer once it is complete. */
  get speed() {
    if (this.measured) return this.measured.tokens_per_second;
    const now = performance.now();
    const recent = this.tokens.filter((token) => token.at >= now - SPEED_WINDOW).length;
    const time = Math.min(SPEED_WINDOW, now - this.startedAt);
    return time > 0 ? (recent * 1000) / time : 0;
  }
}
