#include "tests/api/c_header.h"

#include <gtest/gtest.h>
#include <string>

#include <tandem/study.h>

namespace {

TEST(CHeader, HasOneLayoutInCAndCpp) {
  EXPECT_EQ(size_of_forward_args_in_c(), sizeof(tandem_forward_args));
  EXPECT_EQ(size_of_info_in_c(), sizeof(tandem_info));
  EXPECT_EQ(offset_of_softcap_in_c(), offsetof(tandem_forward_args, softcap));
  EXPECT_EQ(size_of_decode_args_in_c(), sizeof(tandem_decode_args));
  EXPECT_EQ(size_of_cache_in_c(), sizeof(tandem_cache));
  EXPECT_EQ(size_of_study_in_c(), sizeof(tandem_study));
}

TEST(CHeader, FirstVersionOfTheStructsKeepsItsSize) {
  // Programs compiled against 0.2 pass these sizes for ever: fields may be added, these numbers may not
  // change.
  EXPECT_EQ(offsetof(tandem_forward_args, study) + sizeof(void*), 440u);
  EXPECT_EQ(offsetof(tandem_decode_args, study) + sizeof(void*), 472u);
  EXPECT_EQ(offsetof(tandem_mask, window_right) + sizeof(std::int64_t), 32u);
  EXPECT_EQ(offsetof(tandem_cache, batch_index) + sizeof(void*), 208u);
  EXPECT_EQ(offsetof(tandem_rotary, interleaved) + sizeof(std::int32_t), 52u);
  EXPECT_EQ(offsetof(tandem_info, cpu_simd) + sizeof(tandem_info::cpu_simd), 568u);
}

TEST(CHeader, CallsFromC) {
  float o[8] = {};
  ASSERT_EQ(smallest_forward_in_c(o), TANDEM_OK) << tandem_last_error();
  const float v[8] = {3, 1, 4, 1, 5, 9, 2, 6};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(o[i], v[i]);
}

TEST(CHeader, DecodesFromC) {
  float o[8] = {}, v_cache[8] = {};
  ASSERT_EQ(smallest_decode_in_c(o, v_cache), TANDEM_OK) << tandem_last_error();
  const float v[8] = {3, 1, 4, 1, 5, 9, 2, 6};
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(o[i], v[i]);
    EXPECT_EQ(v_cache[i], v[i]);
  }
}

TEST(CHeader, VersionIsThatOfTheHeader) {
  EXPECT_EQ(tandem_version(), std::to_string(TANDEM_VERSION_MAJOR) + "." +
                                  std::to_string(TANDEM_VERSION_MINOR) + "." +
                                  std::to_string(TANDEM_VERSION_PATCH));
}

TEST(CHeader, StatusNames) {
  EXPECT_STREQ(tandem_status_name(TANDEM_OK), "TANDEM_OK");
  EXPECT_STREQ(tandem_status_name(TANDEM_INVALID_ARGUMENT), "TANDEM_INVALID_ARGUMENT");
  EXPECT_STREQ(tandem_status_name(TANDEM_UNSUPPORTED), "TANDEM_UNSUPPORTED");
  EXPECT_STREQ(tandem_status_name(TANDEM_WORKSPACE_TOO_SMALL), "TANDEM_WORKSPACE_TOO_SMALL");
  EXPECT_STREQ(tandem_status_name(TANDEM_NO_DEVICE), "TANDEM_NO_DEVICE");
  EXPECT_STREQ(tandem_status_name(TANDEM_DEVICE_ERROR), "TANDEM_DEVICE_ERROR");
  EXPECT_STREQ(tandem_status_name(TANDEM_INTERNAL_ERROR), "TANDEM_INTERNAL_ERROR");
  EXPECT_STREQ(tandem_status_name(TANDEM_OUT_OF_MEMORY), "TANDEM_OUT_OF_MEMORY");
  EXPECT_STREQ(tandem_status_name(static_cast<tandem_status>(8)), "an unknown status");
}

TEST(Info, SaysWhatIsHereOrWhyItIsNot) {
  tandem_info info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(tandem_get_info(&info), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(info.struct_size, sizeof(info));
  EXPECT_EQ(info.hopper_usable == 0, std::string(info.hopper_reason) != "");
  EXPECT_EQ(std::string(info.device_name) != "", info.device_sm_count > 0);
  EXPECT_TRUE(!info.hopper_usable || (info.hopper_built && info.device_sm_count > 0));
  EXPECT_GE(info.cpu_threads, 1);
  EXPECT_STRNE(info.cpu_simd, "");
}

}  // namespace
