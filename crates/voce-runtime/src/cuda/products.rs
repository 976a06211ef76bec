//! Products by cuBLASLt: how each is set up, and which of the library's algorithms it runs by.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys as cu;

use super::CudaError;
use super::driver::{Address, Driver, Product, ProductKind, Stream};
use super::events::Events;
use super::nvidia::{Nvidia, WORKSPACE, check, out_of_memory};

/// Rows from which the algorithms of a product are tried against each other, as the class counts them that shares one.
const TRIED_ROWS: u32 = 80;
/// Algorithms that are tried, and runs of each that are timed.
const TRIED: usize = 12;
const TRIES: usize = 5;
/// Times the best time so far below which another algorithm is better, and above which one is not tried again.
const WORTH: f32 = 0.98;
const HOPELESS: f32 = 1.2;
/// Bytes that are written before each of these runs: a step finds its weights in memory, not in the cache.
const COLD: usize = 96 << 20;
/// `CUBLAS_OP_T`.
const TRANSPOSED: i32 = 1;

/// What a product needs to be set up; addresses and alignment apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ProductKey {
    kind: ProductKind,
    dims: [u32; 6],
    bias: bool,
    accumulate: bool,
    narrow: bool,
    scaled: bool,
}

impl ProductKey {
    fn of(p: &Product) -> Self {
        Self {
            kind: p.kind,
            dims: [p.m, p.n, p.k, p.a_stride, p.w_stride, p.out_stride],
            bias: p.bias != 0,
            accumulate: p.accumulate,
            narrow: p.narrow,
            scaled: p.scales[0] != 0,
        }
    }

    /// The same for all numbers of rows that share an algorithm.
    fn coarse(mut self) -> Self {
        self.dims[0] = class_of(self.dims[0]);
        self
    }
}

/// The most rows of the class that `rows` belong to: four classes from one power of two to the next. With one, what was best
/// for its fewest rows made steps of its most up to a tenth slower.
fn class_of(rows: u32) -> u32 {
    rows.next_multiple_of((rows.next_power_of_two() / 8).max(1))
}

/// A product that was set up.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) op: lt::cublasLtMatmulDesc_t,
    pub(super) layouts: [lt::cublasLtMatrixLayout_t; 3],
    algorithm: lt::cublasLtMatmulAlgo_t,
}

impl Plan {
    /// Frees it, for the last time.
    pub(super) fn destroy(&self) {
        // SAFETY: made by `Nvidia::plan`, and the only copy that is kept.
        unsafe {
            lt::cublasLtMatmulDescDestroy(self.op);
            self.layouts.iter().for_each(|l| {
                lt::cublasLtMatrixLayoutDestroy(*l);
            });
        }
    }
}

pub(super) fn check_lt(call: &'static str, code: lt::cublasStatus_t) -> Result<(), CudaError> {
    if code == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    if code == lt::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED {
        return Err(out_of_memory(0));
    }
    Err(CudaError::Failed { call, message: format!("{code:?}") })
}

impl Nvidia {
    pub(super) fn product(&self, stream: Stream, p: &Product) -> Result<(), CudaError> {
        let workspace = self.workspaces.lock().unwrap_or_else(|e| e.into_inner())[&stream.0];
        let key = ProductKey::of(p);
        let known = self.plans.lock().unwrap_or_else(|e| e.into_inner()).get(&(stream.0, key)).copied();
        let plan = match known {
            Some(plan) => plan,
            None => {
                let plan = self.plan(stream, workspace, p)?;
                self.plans.lock().unwrap_or_else(|e| e.into_inner()).insert((stream.0, key), plan);
                plan
            }
        };
        // No lock is held that another stream's products would wait for, while this one waits for room in its queue.
        let _enqueuing = self.enqueuing();
        self.multiply(stream, workspace, p, &plan, &plan.algorithm, p.out)
    }

    /// Runs a product by an algorithm, with its result at `to`.
    fn multiply(
        &self,
        stream: Stream,
        workspace: Address,
        p: &Product,
        plan: &Plan,
        algorithm: &lt::cublasLtMatmulAlgo_t,
        to: Address,
    ) -> Result<(), CudaError> {
        let (one, zero) = (1f32.to_bits(), 0f32.to_bits());
        let scalar = |on: bool| match (p.kind, on) {
            (ProductKind::Int8, on) => u32::from(on),
            (_, true) => one,
            (_, false) => zero,
        };
        let (alpha, beta) = (scalar(true), scalar(p.accumulate));
        if p.bias != 0 {
            set(plan.op, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias)?;
        }
        if p.scales[0] != 0 {
            set(plan.op, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p.scales[1])?;
            set(plan.op, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p.scales[0])?;
        }
        // SAFETY: the plan's layouts describe these addresses; scalars are of the plan's scale type.
        check_lt("cublasLtMatmul", unsafe {
            lt::cublasLtMatmul(
                self.blas,
                plan.op,
                std::ptr::from_ref(&alpha).cast(),
                p.w as *const c_void,
                plan.layouts[0],
                p.a as *const c_void,
                plan.layouts[1],
                std::ptr::from_ref(&beta).cast(),
                p.out as *const c_void,
                plan.layouts[2],
                to as *mut c_void,
                plan.layouts[2],
                algorithm,
                workspace as *mut c_void,
                WORKSPACE,
                stream.0 as lt::cudaStream_t,
            )
        })
    }

    /// Row-major `out = a w^T` is column-major `out^T = w a^T`, where `w` is the transposed operand.
    fn plan(&self, stream: Stream, workspace: Address, p: &Product) -> Result<Plan, CudaError> {
        use lt::cublasComputeType_t as C;
        use lt::cudaDataType_t as T;
        let (compute, scale, value, mut result) = match p.kind {
            ProductKind::F32 => (C::CUBLAS_COMPUTE_32F, T::CUDA_R_32F, T::CUDA_R_32F, T::CUDA_R_32F),
            ProductKind::Tf32 => {
                (C::CUBLAS_COMPUTE_32F_FAST_TF32, T::CUDA_R_32F, T::CUDA_R_32F, T::CUDA_R_32F)
            }
            ProductKind::Bf16 => (C::CUBLAS_COMPUTE_32F, T::CUDA_R_32F, T::CUDA_R_16BF, T::CUDA_R_32F),
            ProductKind::Fp8 => (C::CUBLAS_COMPUTE_32F, T::CUDA_R_32F, T::CUDA_R_8F_E4M3, T::CUDA_R_32F),
            ProductKind::Int8 => (C::CUBLAS_COMPUTE_32I, T::CUDA_R_32I, T::CUDA_R_8I, T::CUDA_R_32I),
        };
        if p.narrow {
            result = T::CUDA_R_16BF;
        }
        let mut op = std::ptr::null_mut();
        let layout = |kind, rows: u32, cols: u32, stride: u32| {
            let mut layout = std::ptr::null_mut();
            // SAFETY: a place for the result.
            check_lt("cublasLtMatrixLayoutCreate", unsafe {
                lt::cublasLtMatrixLayoutCreate(&mut layout, kind, rows as u64, cols as u64, stride as i64)
            })?;
            Ok::<_, CudaError>(layout)
        };
        let layouts = [
            layout(value, p.k, p.n, p.w_stride)?,
            layout(value, p.k, p.m, p.a_stride)?,
            layout(result, p.n, p.m, p.out_stride)?,
        ];
        // SAFETY: a place for the result.
        check_lt("cublasLtMatmulDescCreate", unsafe {
            lt::cublasLtMatmulDescCreate(&mut op, compute, scale)
        })?;
        set(op, Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        if p.scales[0] != 0 {
            let by_row = lt::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
            set(op, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &by_row)?;
            set(op, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &by_row)?;
            set(op, Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p.scales[1])?;
            set(op, Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p.scales[0])?;
        }
        if p.bias != 0 {
            let epilogue = lt::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            set(op, Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            set(op, Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias)?;
        }
        let mut plan = Plan { op, layouts, algorithm: lt::cublasLtMatmulAlgo_t { data: [0; 8] } };
        let coarse = ProductKey::of(p).coarse();
        if let Some(known) = self.known(&coarse, &plan) {
            plan.algorithm = known;
            return Ok(plan);
        }
        let found = self.candidates(&plan)?;
        plan.algorithm = match found[..] {
            [] => {
                return Err(CudaError::Failed {
                    call: "cublasLtMatmulAlgoGetHeuristic",
                    message: format!("no algorithm for {p:?}"),
                });
            }
            [only] => only,
            [first, ..] if coarse.dims[0] < TRIED_ROWS => first,
            // There it cannot be waited for; the next plan tries.
            [first, ..] if self.captures(stream)? => {
                plan.algorithm = first;
                return Ok(plan);
            }
            _ => {
                let _alone = self.alone()?;
                match self.known(&coarse, &plan) {
                    // Another stream has tried meanwhile.
                    Some(known) => known,
                    None => self.fastest(stream, workspace, p, &plan, &found)?,
                }
            }
        };
        self.algorithms.lock().unwrap_or_else(|e| e.into_inner()).insert(coarse, plan.algorithm);
        Ok(plan)
    }

    /// The algorithm that was chosen for products like this one, if it serves this one.
    fn known(&self, coarse: &ProductKey, plan: &Plan) -> Option<lt::cublasLtMatmulAlgo_t> {
        let known = self.algorithms.lock().unwrap_or_else(|e| e.into_inner()).get(coarse).copied();
        known.filter(|known| self.fits(plan, known))
    }

    /// Whether an algorithm that was chosen for another number of rows serves this product.
    fn fits(&self, plan: &Plan, algorithm: &lt::cublasLtMatmulAlgo_t) -> bool {
        let mut result = MaybeUninit::<lt::cublasLtMatmulHeuristicResult_t>::zeroed();
        let [w, a, out] = plan.layouts;
        // SAFETY: a place for the result.
        unsafe {
            let code = lt::cublasLtMatmulAlgoCheck(
                self.blas,
                plan.op,
                w,
                a,
                out,
                out,
                algorithm,
                result.as_mut_ptr(),
            );
            let result = result.assume_init();
            code == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS
                && result.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS
                && result.workspaceSize <= WORKSPACE
        }
    }

    /// The algorithms that the library would choose, best first.
    fn candidates(&self, plan: &Plan) -> Result<Vec<lt::cublasLtMatmulAlgo_t>, CudaError> {
        let mut preference = std::ptr::null_mut();
        let mut found = [const { MaybeUninit::<lt::cublasLtMatmulHeuristicResult_t>::zeroed() }; TRIED];
        let mut results = 0;
        let [w, a, out] = plan.layouts;
        // SAFETY: places for the results; attributes have the sizes given; what is read was written.
        unsafe {
            check_lt("cublasLtMatmulPreferenceCreate", lt::cublasLtMatmulPreferenceCreate(&mut preference))?;
            check_lt(
                "cublasLtMatmulPreferenceSetAttribute",
                lt::cublasLtMatmulPreferenceSetAttribute(
                    preference,
                    lt::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                    std::ptr::from_ref(&WORKSPACE).cast(),
                    size_of_val(&WORKSPACE),
                ),
            )?;
            let code = lt::cublasLtMatmulAlgoGetHeuristic(
                self.blas,
                plan.op,
                w,
                a,
                out,
                out,
                preference,
                TRIED as i32,
                found[0].as_mut_ptr(),
                &mut results,
            );
            lt::cublasLtMatmulPreferenceDestroy(preference);
            check_lt("cublasLtMatmulAlgoGetHeuristic", code)?;
            Ok(found[..results as usize].iter().map(|r| r.assume_init().algo).collect())
        }
    }

    /// The algorithm that takes the least time here, or hardly more, on a device that has nothing else to do; its results go
    /// nowhere.
    fn fastest(
        &self,
        stream: Stream,
        workspace: Address,
        p: &Product,
        plan: &Plan,
        found: &[lt::cublasLtMatmulAlgo_t],
    ) -> Result<lt::cublasLtMatmulAlgo_t, CudaError> {
        let Ok(nowhere) = self.alloc(p.m as usize * p.out_stride as usize * 4) else { return Ok(found[0]) };
        // Without memory for it the cache is left as it is.
        let cold = self.alloc(COLD).ok();
        let s = stream.0 as cu::CUstream;
        let time = |algorithm: &lt::cublasLtMatmulAlgo_t| {
            let mut events = Events::default();
            if let Some(cold) = cold {
                // SAFETY: memory of this device that nothing reads.
                check("cuMemsetD8Async", unsafe { cu::cuMemsetD8Async(cold, 0, COLD, s) })?;
            }
            // SAFETY: events of this device.
            check("cuEventRecord", unsafe { cu::cuEventRecord(events.make()?, s) })?;
            self.multiply(stream, workspace, p, plan, algorithm, nowhere)?;
            // SAFETY: as above.
            check("cuEventRecord", unsafe { cu::cuEventRecord(events.make()?, s) })?;
            self.wait(stream)?;
            events.elapsed().map(|times| times[0])
        };
        // In turn: what changes on the device meanwhile disturbs no algorithm more than the others. The first run of each is
        // not counted, and one that cannot run is out.
        let mut least: Vec<f32> = found.iter().map(|a| time(a).map_or(f32::NAN, |_| f32::INFINITY)).collect();
        for _ in 0..TRIES {
            let bound = HOPELESS * least.iter().copied().fold(f32::INFINITY, f32::min);
            for (least, algorithm) in least.iter_mut().zip(found).filter(|(l, _)| **l <= bound) {
                *least = time(algorithm).map_or(f32::NAN, |took| took.min(*least));
            }
        }
        let mut best = (f32::INFINITY, 0);
        for (place, &took) in least.iter().enumerate() {
            // The library's order stands where times hardly differ.
            if took < WORTH * best.0 {
                best = (took, place);
            }
        }
        let (kind, ms, place, count) = (p.kind, best.0, best.1, found.len());
        tracing::debug!(
            "product of {} rows, {kind:?} {}x{}: algorithm {place} of {count}, {ms} ms",
            p.m,
            p.n,
            p.k
        );
        cold.into_iter().for_each(|cold| self.free(cold));
        self.free(nowhere);
        Ok(found[place])
    }
}

type Attribute = lt::cublasLtMatmulDescAttributes_t;

/// Sets an attribute of a product.
fn set<T>(op: lt::cublasLtMatmulDesc_t, attribute: Attribute, value: &T) -> Result<(), CudaError> {
    // SAFETY: the attribute has the size of the value.
    check_lt("cublasLtMatmulDescSetAttribute", unsafe {
        lt::cublasLtMatmulDescSetAttribute(op, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_share_an_algorithm_with_at_most_a_quarter_more() {
        let classes = |rows: std::ops::RangeInclusive<u32>| rows.map(class_of).collect::<Vec<_>>();
        assert_eq!(classes(1..=8), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(
            [9, 64, 65, 128, 129, 244, 256, 257, 17024].map(class_of),
            [10, 64, 80, 128, 160, 256, 256, 320, 20480]
        );
        for rows in 1..5000 {
            assert!(class_of(rows) >= rows && class_of(rows) <= rows + rows / 4, "{rows}");
            assert_eq!(class_of(class_of(rows)), class_of(rows));
        }
    }
}
