// The search needs a server: browsers do not let a page from a disk load its index. So from a disk it is not shown.
if (location.protocol === "file:") document.documentElement.classList.add("from-disk");
