"""What functions and methods of these names do with their arguments, wherever they are from."""

# Functions and methods that show or record their arguments.
OUTPUT = frozenset(
    "add_figure add_histogram add_hparams add_image add_scalar add_scalars add_text critical debug display dump error "
    "exception flush info journal log log_metric log_metrics plot postfix pprint print savefig scatter secho "
    "set_description set_description_str set_postfix set_postfix_str set_title show track warn warning write "
    "writelines writerow writerows".split()
)
# Functions whose value depends on their arguments, and that do nothing else.
PURE = frozenset(
    "abs all any bool bytes complex dict divmod enumerate filter float format frozenset getattr hasattr hash hex id "
    "int isinstance len list map max mean min pow range repr reversed round set sorted sqrt str sum tensor tuple type "
    "zip".split()
)

# Those of them that return no part of an argument.
VALUES = PURE - frozenset(
    "dict enumerate filter frozenset getattr list map max min reversed set sorted tuple zip".split()
)
# Methods of containers, which keep their arguments and do not change them; the second ones take something away.
FILLS = frozenset("add append appendleft extend extendleft insert put put_nowait".split())
KEEPS = FILLS | {"setdefault", "update"}  # methods that keep their arguments
EMPTIES = frozenset("clear discard pop popitem popleft remove".split())
# Methods that return parts or views of their object, and functions that return the items of their arguments.
VIEWS = frozenset(
    "buffers children chunk data detach expand flatten get get_parameter get_submodule items modules named_buffers "
    "named_children named_modules named_parameters narrow numpy parameters permute reshape select split squeeze "
    "state_dict t transpose unbind unflatten unsqueeze values view view_as".split()
)
WRAPS = frozenset("as_tensor asarray enumerate filter from_numpy iter list next reversed set sorted tuple zip".split())
COPIES = frozenset("detach index item number tolist".split())  # attributes that are values of their own
TEXTS = ("__format__", "__repr__", "__str__")
OPENS = frozenset("nullcontext open record_function suppress".split())  # contexts that set nothing
PROPERTIES = frozenset(("cached_property", "property"))
# Functions that read no attribute of their arguments.
NOT_READ = frozenset("callable delattr hasattr id isinstance issubclass len setattr type".split())
SESSION = frozenset(("Session", "register", "run"))
STEP = "step"  # a scheduler's
