#include "api/hopper.h"

const tandem::api::Hopper* const tandem::api::hopper = nullptr;
