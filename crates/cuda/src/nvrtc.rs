//! NVRTC, the compiler of CUDA C, which is loaded when it is needed.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;

/// The environment variable with the path of NVRTC's library.
pub const NVRTC_VARIABLE: &str = "FORERUN_NVRTC";

/// The names of the library, newer versions first.
#[cfg(not(windows))]
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "libnvrtc.so.11.2"];
#[cfg(windows)]
const NAMES: [&str; 3] = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"];

/// Options of every compilation. Arithmetic in kernels has its own functions, which none of these
/// changes; they are for what is left, such as conversions.
pub(crate) const OPTIONS: [&str; 5] =
    ["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];

type Program = *mut std::ffi::c_void;
type Status = c_int;

/// What is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Machine code for a compute capability, such as 90.
    Cubin(u32),
    /// PTX for a compute capability, which drivers compile.
    Ptx(u32),
}

/// The compiler.
#[derive(Debug)]
pub struct Nvrtc {
    library: Library,
    /// What the library loads when it compiles.
    _parts: Vec<Library>,
    version: [i32; 2],
}

/// A function of the library.
macro_rules! function {
    ($self:ident, $name:literal, fn($($argument:ty),* $(,)?)) => {
        // SAFETY: NVRTC's header declares the function with this type.
        unsafe {
            $self
                .library
                .get::<unsafe extern "C" fn($($argument),*) -> Status>(concat!($name, "\0").as_bytes())
        }
        .map_err(|error| format!("NVRTC: {error}"))?
    };
}

/// Loads the library that NVRTC needs from the same folder, where the system may not look for it.
fn load_parts(nvrtc: &Path) -> Vec<Library> {
    let folder = nvrtc.parent().filter(|folder| !folder.as_os_str().is_empty());
    let files = folder.and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten();
    let is_part = |file: &Path| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libnvrtc-builtins.so") || name.starts_with("nvrtc-builtins64")
    };
    let parts = files.map(|file| file.path()).filter(|file| is_part(file));
    // SAFETY: it runs nothing when it is loaded that needs anything of this process.
    parts.filter_map(|part| unsafe { Library::new(part) }.ok()).collect()
}

/// Returns whether a driver for a version of CUDA loads code of a version of NVRTC: machine code of
/// its major version and older (CUDA Compatibility, "Minor Version Compatibility").
fn suits(nvrtc: [i32; 2], driver: [i32; 2]) -> bool {
    nvrtc[0] <= driver[0]
}

/// Returns what to install for a driver.
fn what_to_install(cuda: Option<[i32; 2]>) -> String {
    let (package, library) = match cuda {
        Some([11, _]) => ("nvidia-cuda-nvrtc-cu11", "libnvrtc.so.11.2"),
        Some([12, _]) => ("nvidia-cuda-nvrtc-cu12", "libnvrtc.so.12"),
        _ => ("nvidia-cuda-nvrtc", "libnvrtc.so.13"),
    };
    let of_driver = cuda.map(|[major, _]| format!(" for CUDA {major}")).unwrap_or_default();
    format!(
        "Install NVIDIA's package cuda-nvrtc{of_driver}; or the Python package {package}, and set {NVRTC_VARIABLE} to the path of its \
         library ({library}), because the system does not look for libraries of Python packages"
    )
}

impl Nvrtc {
    /// Loads the compiler: from the path in the environment variable `FORERUN_NVRTC`, or where the
    /// system finds it. `cuda` is the version of CUDA that the driver is for, such as `[12, 4]`:
    /// drivers do not load code of a later major version. Without it, any compiler will do.
    ///
    /// # Errors
    /// With what to do if there is none for the driver.
    pub fn load(cuda: Option<[i32; 2]>) -> Result<Self, String> {
        let named = std::env::var_os(NVRTC_VARIABLE).filter(|path| !path.is_empty());
        let paths: Vec<PathBuf> = match named {
            Some(path) => vec![path.into()],
            None => NAMES.map(PathBuf::from).into(),
        };
        let mut reasons = Vec::new();
        for path in &paths {
            let parts = load_parts(path);
            // SAFETY: NVRTC runs nothing when it is loaded that needs anything of this process.
            match unsafe { Library::new(path) } {
                Ok(library) => {
                    let mut loaded = Self { library, _parts: parts, version: [0; 2] };
                    loaded.version = loaded.read_version()?;
                    match cuda {
                        Some(of_driver) if !suits(loaded.version, of_driver) => {
                            let ([major, minor], [most, _]) = (loaded.version, of_driver);
                            reasons.push(format!(
                                "{} is NVRTC {major}.{minor}, but the driver loads code of CUDA {most} and older",
                                path.display()
                            ));
                        }
                        _ => return Ok(loaded),
                    }
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(format!(
            "CUDA needs NVRTC, which compiles kernels ({}). {}",
            reasons.join("; "),
            what_to_install(cuda)
        ))
    }

    fn read_version(&self) -> Result<[i32; 2], String> {
        let version = function!(self, "nvrtcVersion", fn(*mut c_int, *mut c_int));
        let [mut major, mut minor] = [0; 2];
        // SAFETY: both are places for a number.
        self.check(unsafe { version(&raw mut major, &raw mut minor) })?;
        Ok([major, minor])
    }

    /// Returns the version.
    #[must_use]
    pub fn version(&self) -> [i32; 2] {
        self.version
    }

    /// Returns the compute capabilities that it compiles for, such as 90, in ascending order.
    ///
    /// # Errors
    /// If the library is older than CUDA 11.2.
    pub fn capabilities(&self) -> Result<Vec<u32>, String> {
        let count = function!(self, "nvrtcGetNumSupportedArchs", fn(*mut c_int));
        let list = function!(self, "nvrtcGetSupportedArchs", fn(*mut c_int));
        let mut number = 0;
        // SAFETY: it is a place for a number.
        self.check(unsafe { count(&raw mut number) })?;
        let mut all: Vec<c_int> = vec![0; usize::try_from(number).unwrap_or(0)];
        // SAFETY: there are places for so many numbers.
        self.check(unsafe { list(all.as_mut_ptr()) })?;
        Ok(all.into_iter().filter_map(|capability| u32::try_from(capability).ok()).collect())
    }

    /// Compiles a kernel.
    ///
    /// # Errors
    /// With what the compiler says.
    pub fn compile(&self, source: &str, output: Output) -> Result<Vec<u8>, String> {
        let create = function!(
            self,
            "nvrtcCreateProgram",
            fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            )
        );
        let destroy = function!(self, "nvrtcDestroyProgram", fn(*mut Program));
        let source = CString::new(source).map_err(|error| error.to_string())?;
        let mut program: Program = ptr::null_mut();
        // SAFETY: the strings end with a zero, and there are no headers.
        self.check(unsafe {
            create(
                &raw mut program,
                source.as_ptr(),
                c"kernel.cu".as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        })?;
        let compiled = self.compile_program(program, output);
        // SAFETY: the program has been created, and nobody uses it any more.
        unsafe { destroy(&raw mut program) };
        compiled
    }

    fn compile_program(&self, program: Program, output: Output) -> Result<Vec<u8>, String> {
        let compile =
            function!(self, "nvrtcCompileProgram", fn(Program, c_int, *const *const c_char));
        let architecture = match output {
            Output::Cubin(capability) => format!("--gpu-architecture=sm_{capability}"),
            Output::Ptx(capability) => format!("--gpu-architecture=compute_{capability}"),
        };
        let options = OPTIONS.into_iter().chain([architecture.as_str()]);
        let options = options.map(CString::new).collect::<Result<Vec<_>, _>>();
        let options = options.map_err(|error| error.to_string())?;
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program has been created, and there are so many options, which are strings
        // that end with a zero.
        let status = unsafe { compile(program, pointers.len() as c_int, pointers.as_ptr()) };
        if let Err(error) = self.check(status) {
            let log = self.read(program, ["nvrtcGetProgramLogSize", "nvrtcGetProgramLog"])?;
            return Err(format!("{error}: {}", String::from_utf8_lossy(&log)));
        }
        match output {
            Output::Cubin(_) => self.read(program, ["nvrtcGetCUBINSize", "nvrtcGetCUBIN"]),
            Output::Ptx(_) => self.read(program, ["nvrtcGetPTXSize", "nvrtcGetPTX"]),
        }
    }

    /// Reads an output of a program by a function for its size, and one for its bytes.
    fn read(&self, program: Program, [size, bytes]: [&str; 2]) -> Result<Vec<u8>, String> {
        let error = |error: libloading::Error| format!("NVRTC: {error}");
        // SAFETY: NVRTC's header declares both functions with these types.
        let (size, bytes) = unsafe {
            type Size = unsafe extern "C" fn(Program, *mut usize) -> Status;
            type Bytes = unsafe extern "C" fn(Program, *mut c_char) -> Status;
            let size = self.library.get::<Size>(size.as_bytes()).map_err(error)?;
            (size, self.library.get::<Bytes>(bytes.as_bytes()).map_err(error)?)
        };
        let mut length = 0;
        // SAFETY: the program exists, and `length` is a place for a size.
        self.check(unsafe { size(program, &raw mut length) })?;
        let mut output = vec![0_u8; length];
        // SAFETY: there is room for so many bytes.
        self.check(unsafe { bytes(program, output.as_mut_ptr().cast()) })?;
        Ok(output)
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC's header declares the function with this type.
        let describe = unsafe {
            self.library
                .get::<unsafe extern "C" fn(Status) -> *const c_char>(b"nvrtcGetErrorString\0")
        };
        let name = describe.map_or_else(
            |_| format!("error {status}"),
            |describe| {
                // SAFETY: it returns a constant string for every number.
                unsafe { CStr::from_ptr(describe(status)) }.to_string_lossy().into_owned()
            },
        );
        Err(format!("NVRTC: {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_load_code_of_their_major_version_and_older() {
        for (nvrtc, driver, expected) in [
            ([12, 9], [12, 2], true),
            ([12, 2], [12, 9], true),
            ([12, 9], [13, 0], true),
            ([11, 8], [12, 4], true),
            ([13, 0], [12, 9], false),
            ([12, 0], [11, 8], false),
        ] {
            assert_eq!(suits(nvrtc, driver), expected, "{nvrtc:?} with {driver:?}");
        }
    }

    #[test]
    fn errors_name_the_package_for_the_driver() {
        for (driver, package) in [
            (Some([11, 8]), "nvidia-cuda-nvrtc-cu11,"),
            (Some([12, 4]), "nvidia-cuda-nvrtc-cu12,"),
            (Some([13, 0]), "nvidia-cuda-nvrtc,"),
            (None, "nvidia-cuda-nvrtc,"),
        ] {
            let text = what_to_install(driver);
            assert!(text.contains(package) && text.contains(NVRTC_VARIABLE), "{text}");
        }
    }
}
