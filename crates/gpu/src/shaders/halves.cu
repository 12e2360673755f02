// Returns two numbers of f16 as the sum of two pairs of bf16, which is exact: the upper bits, and
// the rest.
DEVICE void split_f16_pair(u32 pair, u32& upper, u32& rest) {
  float low = f16_to_float(pair & 0xffffu), high = f16_to_float(pair >> 16);
  u32 of_low = __float_as_uint(low) & 0xffff0000u, of_high = __float_as_uint(high) & 0xffff0000u;
  upper = of_low >> 16 | of_high;
  rest = bf16_pair(__fsub_rn(low, __uint_as_float(of_low)),
                   __fsub_rn(high, __uint_as_float(of_high)));
}
