// The elementary functions that shared headers need, under one name for g++, clang and NVRTC.
#pragma once

namespace sirdar {

#ifdef __CUDACC_RTC__
inline float exp_of(float x) { return expf(x); }
inline double exp_of(double x) { return exp(x); }
inline float log_of(float x) { return logf(x); }
inline double log_of(double x) { return log(x); }
inline float tanh_of(float x) { return tanhf(x); }
inline double tanh_of(double x) { return tanh(x); }
#else
inline float exp_of(float x) { return __builtin_expf(x); }
inline double exp_of(double x) { return __builtin_exp(x); }
inline float log_of(float x) { return __builtin_logf(x); }
inline double log_of(double x) { return __builtin_log(x); }
inline float tanh_of(float x) { return __builtin_tanhf(x); }
inline double tanh_of(double x) { return __builtin_tanh(x); }
#endif

template <class T>
inline constexpr T kInfinity = static_cast<T>(__builtin_bit_cast(float, 0x7f800000u));

}  // namespace sirdar
