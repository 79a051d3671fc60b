// The verbs in inline PTX for sm_90a. The only folder with assembly.
#pragma once

#include "hw/sm90/arithmetic.h"
#include "hw/sm90/barriers.h"
#include "hw/sm90/global.h"
#include "hw/sm90/threads.h"
#include "hw/sm90/tma.h"
#include "hw/sm90/warp_matrix.h"
#include "hw/sm90/wgmma.h"
