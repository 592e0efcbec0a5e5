// Random problems that validate: every field of Problem takes part.
#pragma once

#include <sirdar/problem.hpp>

#include <rapidcheck.h>

namespace sirdar::testing {

rc::Gen<Problem> valid_problem();

}  // namespace sirdar::testing

namespace rc {
template <>
struct Arbitrary<sirdar::Problem> {
  static Gen<sirdar::Problem> arbitrary() { return sirdar::testing::valid_problem(); }
};
}  // namespace rc
