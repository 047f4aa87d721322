// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tensors.h"

#include <limits>

#include "palimpsest/core/random.h"

namespace palimpsest::test {

namespace {
at::Tensor relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().to(at::kDouble).cpu(), y = b.detach().to(at::kDouble).cpu();
  const at::Tensor same = x.eq(y).logical_or(x.isnan().logical_and(y.isnan()));
  const at::Tensor difference = ((x - y).abs() / y.abs().clamp_min(1)).masked_fill(same, 0);
  return difference.nan_to_num(std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity());
}
}  // namespace

double distance(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  return a.numel() == 0 ? 0 : relative_difference(a, b).max().item<double>();
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance, const std::string& what) {
  ASSERT_TRUE(actual.defined()) << what << " is undefined";
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const at::Tensor difference = relative_difference(actual, expected).reshape({-1});
  const int64_t worst = difference.argmax().item<int64_t>();
  EXPECT_LE(difference[worst].item<double>(), tolerance)
      << what << " differs most at flat index " << worst << ": " << actual.reshape({-1})[worst].item<double>()
      << " instead of " << expected.reshape({-1})[worst].item<double>();
}

void expect_identical(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  expect_close(actual, expected, 0, what);
  if (actual.defined() && expected.defined()) EXPECT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
}

at::Tensor randn(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype) {
  at::Tensor values = at::empty(shape, at::kDouble);
  Random random(random_key(seed, 7));
  for (int64_t i = 0; i < values.numel(); ++i) values.data_ptr<double>()[i] = random.normal();
  return values.to(dtype);
}

}  // namespace palimpsest::test
